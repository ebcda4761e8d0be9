#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "sparse/activation/active_rows_device.h"
#include "sparse/activation/row_pieces.cuh"

// The first layer: gate and up. down_rows_cuda.cu has the second.
namespace sparsellm {
namespace {

constexpr int kNeuronWarps = 8;
constexpr int kNeuronTokens = 8;  // that share the loads of a row
constexpr int kPiecesAtOnce = 4;  // of a row, which a lane loads before it multiplies the first

// What a neuron has, of which a layer with one row gives that row twice.
enum class FirstLayer : uint8_t {
  gated,       // first: gate, second: up
  plain,       // first: up
  from_gates,  // second: up
};

template <class T>
struct NeuronRows {
  MatrixRows<T> w;
  BiasValues bias;
};

template <class T>
struct FirstRows {
  MatrixRows<T> x;
  NeuronRows<T> first;
  NeuronRows<T> second;
  const uint8_t* active;  // null: all
  int64_t active_stride;
  const T* g;  // from_gates
  int64_t g_stride;
  T* h;
  int64_t h_stride;
  float threshold;
  bool relu_up;
  int64_t neurons;
  int64_t tokens;
  int columns;
};

// relu, or fatrelu. NaN is above.
__device__ float zero_unless_above(float threshold, float value) {
  return value <= threshold ? 0.0f : value;
}

// By a warp: lane t gets the product of row `neuron` of w and token first_token + t of x, if bit t
// of `wanted` is set, and 0 otherwise. The order of a sum is the same whichever others are wanted.
template <class T>
__device__ float multiply_neuron(const MatrixRows<T>& w, int64_t neuron, const MatrixRows<T>& x,
                                 int64_t first_token, int columns, unsigned wanted) {
  if (wanted == 0) {
    return 0.0f;
  }
  const int lane = threadIdx.x % kWarpSize;
  const T* const row = w.row(neuron);
  float sums[kNeuronTokens] = {};
  for (int begin = lane * kPieceElements; begin < columns; begin += kPiecesAtOnce * kTileElements) {
    uint4 pieces[kPiecesAtOnce];
#pragma unroll
    for (int i = 0; i < kPiecesAtOnce; ++i) {
      const int column = begin + i * kTileElements;
      pieces[i] = load_piece(row + column, columns - column, w.aligned);
    }
#pragma unroll
    for (int i = 0; i < kPiecesAtOnce; ++i) {
      const int column = begin + i * kTileElements;
      if (column >= columns) {
        break;
      }
      float weights[kPieceElements];
      unpack_piece<T>(pieces[i], weights);
#pragma unroll
      for (int t = 0; t < kNeuronTokens; ++t) {
        if ((wanted >> t & 1u) != 0) {
          const T* const token = x.row(first_token + t);
          float values[kPieceElements];
          unpack_piece<T>(load_piece(token + column, columns - column, x.aligned), values);
#pragma unroll
          for (int j = 0; j < kPieceElements; ++j) {
            sums[t] = fmaf(weights[j], values[j], sums[t]);
          }
        }
      }
    }
  }
  float sum_of_lane = 0.0f;
#pragma unroll
  for (int t = 0; t < kNeuronTokens; ++t) {
    if ((wanted >> t & 1u) != 0) {
      const float sum = warp_sum(sums[t]);
      sum_of_lane = lane == t ? sum : sum_of_lane;
    }
  }
  return sum_of_lane;
}

// A warp has a neuron, for kNeuronTokens tokens at a time, and lane t what becomes of the t-th of
// them: whether it wants the neuron, its gate, its h. Rows of the neuron are read if one of these
// tokens wants them, from memory once.
template <FirstLayer kLayer, class T>
__global__ void __launch_bounds__(kNeuronWarps* kWarpSize) first_rows_kernel(FirstRows<T> p) {
  launch_dependents();
  wait_on_dependencies();
  const int lane = threadIdx.x % kWarpSize;
  const int64_t neuron = int64_t{blockIdx.x} * kNeuronWarps + uniform_warp();
  if (neuron >= p.neurons) {
    return;
  }
  for (int64_t first_token = 0; first_token < p.tokens; first_token += kNeuronTokens) {
    const int64_t token = first_token + lane;
    const bool has_token = lane < kNeuronTokens && token < p.tokens;
    float value = 0.0f;
    if constexpr (kLayer == FirstLayer::from_gates) {
      if (has_token) {
        value = zero_unless_above(p.threshold, f32_of(p.g[token * p.g_stride + neuron]));
      }
    } else {
      const bool is_wanted =
          has_token && (p.active == nullptr || p.active[token * p.active_stride + neuron] != 0);
      const float sum = multiply_neuron(p.first.w, neuron, p.x, first_token, p.columns,
                                        __ballot_sync(~0u, is_wanted));
      if (is_wanted) {
        value = zero_unless_above(p.threshold, sum + p.first.bias.at(neuron));
      }
    }
    if constexpr (kLayer != FirstLayer::plain) {
      const bool is_wanted = value != 0.0f;
      const float sum = multiply_neuron(p.second.w, neuron, p.x, first_token, p.columns,
                                        __ballot_sync(~0u, is_wanted));
      if (is_wanted) {
        const float up = sum + p.second.bias.at(neuron);
        value *= p.relu_up ? zero_unless_above(0.0f, up) : up;
      }
    }
    if (has_token) {
      p.h[token * p.h_stride + neuron] = from_f32<T>(value);
    }
  }
}

template <class T>
NeuronRows<T> neuron_rows(const RowAccess& rows, const Tensor& bias) {
  return {.w = matrix_rows<T>(dynamic_cast<const DenseRows&>(rows).weight()),
          .bias = BiasValues(bias)};
}

struct FirstOperands {
  Tensor x;
  const RowAccess& first;
  Tensor first_bias;
  const RowAccess& second;
  Tensor second_bias;
  Tensor active;
  Tensor g;
  Tensor h;
  Activation activation;
  bool relu_up = false;
};

template <FirstLayer kLayer>
void launch_first_rows(const FirstOperands& operands, ExecContext& ctx) {
  const Tensor& x = operands.x;
  const Tensor& h = operands.h;
  const int64_t blocks = (h.size(1) + kNeuronWarps - 1) / kNeuronWarps;
  require(blocks <= INT32_MAX && x.size(1) <= kMaxRowElements,
          "{} neurons of {} inputs are too many", h.size(1), x.size(1));
  const bool is_relu = operands.activation.kind == Activation::Kind::relu;
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, first_rows_kernel<kLayer, T>,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = kNeuronWarps * kWarpSize,
            .shared_bytes = 0,
            .pdl = true},
           FirstRows<T>{.x = matrix_rows<T>(x),
                        .first = neuron_rows<T>(operands.first, operands.first_bias),
                        .second = neuron_rows<T>(operands.second, operands.second_bias),
                        .active = static_cast<const uint8_t*>(operands.active.raw()),
                        .active_stride = operands.active.row_stride(),
                        .g = static_cast<const T*>(operands.g.raw()),
                        .g_stride = operands.g.row_stride(),
                        .h = static_cast<T*>(h.raw()),
                        .h_stride = h.row_stride(),
                        .threshold = is_relu ? 0.0f : operands.activation.threshold,
                        .relu_up = operands.relu_up,
                        .neurons = h.size(1),
                        .tokens = h.size(0),
                        .columns = static_cast<int>(x.size(1))});
  });
}

}  // namespace

void gated_rows_cuda(const Tensor& x, const GatedRows& rows, const Tensor& active, Tensor h,
                     ExecContext& ctx) {
  launch_first_rows<FirstLayer::gated>({.x = x,
                                        .first = rows.gate,
                                        .first_bias = rows.gate_bias,
                                        .second = rows.up,
                                        .second_bias = rows.up_bias,
                                        .active = active,
                                        .g = {},
                                        .h = h,
                                        .activation = rows.activation,
                                        .relu_up = rows.relu_up},
                                       ctx);
}

void plain_rows_cuda(const Tensor& x, const PlainRows& rows, const Tensor& active, Tensor h,
                     ExecContext& ctx) {
  launch_first_rows<FirstLayer::plain>({.x = x,
                                        .first = rows.up,
                                        .first_bias = rows.bias,
                                        .second = rows.up,
                                        .second_bias = {},
                                        .active = active,
                                        .g = {},
                                        .h = h,
                                        .activation = rows.activation},
                                       ctx);
}

void up_rows_cuda(const Tensor& x, const UpRows& rows, const Tensor& g, Tensor h,
                  ExecContext& ctx) {
  launch_first_rows<FirstLayer::from_gates>({.x = x,
                                             .first = rows.up,
                                             .first_bias = {},
                                             .second = rows.up,
                                             .second_bias = rows.up_bias,
                                             .active = {},
                                             .g = g,
                                             .h = h,
                                             .activation = rows.activation,
                                             .relu_up = rows.relu_up},
                                            ctx);
}

}  // namespace sparsellm
