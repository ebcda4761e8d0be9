#include <limits>
#include <optional>

#include "kernels/base/launch.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/activation/cuda/fused_mlp.cuh"
#include "sparse/activation/fused_mlp_device.h"

namespace sparsellm {
namespace {

static_assert(fused::kActiveWords + fused::kWordsOfH <= CudaQueue::kTagged);

using fused::FusedKernel;
using fused::FusedLayout;
using fused::FusedParameters;
using fused::FusedShape;

// Nothing where no kernel takes the MLP.
std::optional<FusedShape> fused_shape(const FusedMlp& mlp, int64_t tokens, int multiprocessors) {
  for (const int tiles : fused::kFusedTiles) {
    const FusedShape shape{.tokens = static_cast<int>(tokens),
                           .in = static_cast<int>(mlp.up.size(1)),
                           .out = static_cast<int>(mlp.down.size(1)),
                           .neurons = static_cast<int>(mlp.up.size(0)),
                           .kinds = mlp.gate.empty() ? 1 : 2,
                           .tiles = tiles};
    // All blocks run at once, and each has votes to count: the others know by its words that it has
    // started, and the number of the launch may change.
    if (shape.blocks() <= multiprocessors && shape.steps() <= shape.most_steps()) {
      const bool fits = shape.units() >= shape.blocks() && shape.blocks() <= fused::kMostBlocks &&
                        shape.in <= fused::kMostSquares * 128 &&
                        shape.own_units() <= fused::kMostUnits &&
                        shape.own_units() * fused::kUnit <= fused::kMostShare &&
                        shape.units() * fused::kMostTokens / 2 <= fused::kActiveWords;
      return fits ? std::optional(shape) : std::nullopt;
    }
  }
  return {};
}

uint32_t stride_bytes(const Tensor& weight) {
  return static_cast<uint32_t>(weight.row_stride() * size_of(weight.dtype()));
}

template <class T>
FusedKernel fused_kernel(const FusedShape& shape) {
  return shape.kinds == 2 ? fused::fused_gated_kernel<T>(shape.tiles)
                          : fused::fused_plain_kernel<T>(shape.tiles);
}

}  // namespace

bool fused_mlp_fits_cuda(const FusedMlp& mlp, const ExecContext& ctx) {
  const CudaContext::State& cuda = cuda_state(ctx);
  constexpr int kHopper = 90;
  if (cuda.compute_capability != kHopper || !cuda.has_pdl) {
    return false;
  }
  const std::optional<FusedShape> shape = fused_shape(mlp, kFusedTokens, cuda.multiprocessors);
  return shape && fused_layout(*shape).has_value();
}

void fused_mlp_cuda(const Tensor& x, const Tensor& positions, const FusedMlp& mlp, Tensor y,
                    ExecContext& ctx) {
  const CudaQueue& queue = cuda_queue(ctx);
  const FusedShape shape = fused_shape(mlp, x.size(0), cuda_state(ctx).multiprocessors).value();
  const FusedLayout layout = fused_layout(shape).value();
  const FusedParameters parameters{
      .shape = shape,
      .at = layout,
      .x = x.raw(),
      .x_stride = x.row_stride(),
      .positions = positions.empty() ? nullptr : positions.data<int32_t>(),
      .signs = mlp.signs.signs.empty() ? nullptr : mlp.signs.signs.data<uint32_t>(),
      .gate = mlp.gate.raw(),
      .gates = mlp.gates.raw(),
      .gates_stride = mlp.gates.empty() ? 0 : mlp.gates.row_stride(),
      .up = mlp.up.raw(),
      .down = mlp.down.raw(),
      .gate_stride = mlp.gate.empty() ? 0 : stride_bytes(mlp.gate),
      .up_stride = stride_bytes(mlp.up),
      .down_stride = stride_bytes(mlp.down),
      .gate_bias = mlp.gate_bias.raw(),
      .up_bias = mlp.up_bias.raw(),
      .down_bias = mlp.down_bias.raw(),
      .y = y.raw(),
      .y_stride = y.row_stride(),
      .per_vector = 8.f / static_cast<float>(shape.in),
      .prefetched = shape.tokens <= 2 ? 2 : 0,
      .alpha = mlp.prediction.alpha,
      .threshold = mlp.activation.threshold,
      .least_up = mlp.relu_up ? 0.f : -std::numeric_limits<float>::infinity(),
      .weighted = mlp.prediction.votes == Votes::weighted,
      .per_block =
          static_cast<uint32_t>(((int64_t{1} << 32) + shape.blocks() - 1) / shape.blocks()),
      .counts_bits =
          mlp.prediction.votes == Votes::sign && shape.tokens <= fused::kMostCountedTokens,
      .whole_units = ctx.sums == Sums::batch_invariant,
      .generation = queue.tagged,
      .active = queue.tagged + 1,
      .h = queue.tagged + 1 + fused::kActiveWords,
      .counters = mlp.counters};
  visit_activation(x.dtype(), [&](auto element) {
    const FusedKernel kernel = fused_kernel<decltype(element)>(shape);
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes));
    launch(ctx, kernel,
           {.blocks = static_cast<unsigned>(shape.blocks()),
            .threads = fused::kThreads,
            .shared_bytes = static_cast<size_t>(layout.bytes),
            .pdl = true,
            .cluster = 2},
           parameters);
  });
}

}  // namespace sparsellm
