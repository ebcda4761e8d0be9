#include <algorithm>
#include <array>
#include <span>

#include "kernels/device/activate_values.h"
#include "sparse/activation/active_rows_device.h"

// The first layer: gate and up. down_rows_cpu.cpp has the second.
namespace sparsellm {
namespace {

// Neurons whose rows are read for one token after the other, so that those that several want are
// read from memory once.
constexpr int64_t kNeurons = 128;
// Products that are worth the attention of another thread.
constexpr int64_t kMinProducts = 16 << 10;

// Some of kNeurons neurons of a layer, and a value of each.
struct NeuronList {
  std::array<int32_t, kNeurons> neurons;
  std::array<float, kNeurons> values;
  int64_t count = 0;

  std::span<const int32_t> rows() const { return {neurons.data(), static_cast<size_t>(count)}; }
  void append_if(bool condition, int64_t neuron, float value) {  // without a branch
    neurons[static_cast<size_t>(count)] = static_cast<int32_t>(neuron);
    values[static_cast<size_t>(count)] = value;
    count += condition ? 1 : 0;
  }
};

// values = the neurons' rows times x, + bias.
void multiply(const RowAccess& rows, const Tensor& bias, const float* x, NeuronList& list,
              CpuIsa isa) {
  rows.multiply(list.rows(), x, list.values.data(), isa);
  if (!bias.empty()) {
    visit_float(bias.dtype(), [&]<class B>(B) {
      const B* const values = bias.data<B>();
      for (size_t k = 0; k < list.rows().size(); ++k) {
        list.values[k] += to_float(values[list.neurons[k]]);
      }
    });
  }
}

NeuronList active_neurons(const Tensor& active, int64_t token, int64_t begin, int64_t end) {
  NeuronList list;
  const uint8_t* const flags = active.empty() ? nullptr : active.row<uint8_t>(token);
  for (int64_t i = begin; i < end; ++i) {
    list.append_if(flags == nullptr || flags[i] != 0, i, 0.0f);
  }
  return list;
}

// h = the gates of a token times what their neurons' rows of up give; of those that are not zero.
template <class Rows>
void multiply_by_up(const NeuronList& gates, const Rows& rows, const float* x, float* h,
                    CpuIsa isa) {
  NeuronList ups;
  std::array<float, kNeurons> factors;
  for (size_t k = 0; k < gates.rows().size(); ++k) {
    factors[static_cast<size_t>(ups.count)] = gates.values[k];
    ups.append_if(gates.values[k] != 0.0f, gates.neurons[k], 0.0f);
  }
  multiply(rows.up, rows.up_bias, x, ups, isa);
  if (rows.relu_up) {
    activate_values({.kind = Activation::Kind::relu}, ups.values.data(), ups.count);
  }
  for (size_t k = 0; k < ups.rows().size(); ++k) {
    h[ups.neurons[k]] = factors[k] * ups.values[k];
  }
}

// Calls body(token, begin, end) for some neurons at a time, on all threads.
template <class Body>
void for_each_piece(const Tensor& x, int64_t neurons, ExecContext& ctx, Body&& body) {
  const int64_t products_per_neuron = std::max<int64_t>(x.size(0) * x.size(1), 1);
  const int64_t grain = kMinProducts / products_per_neuron + 1;
  ctx.threads.parallel_for(neurons, grain, [&](int64_t first, int64_t last) {
    for (int64_t begin = first; begin < last; begin += kNeurons) {
      for (int64_t token = 0; token < x.size(0); ++token) {
        body(token, begin, std::min(begin + kNeurons, last));
      }
    }
  });
}

}  // namespace

void gated_rows_cpu(const Tensor& x, const GatedRows& rows, const Tensor& active, Tensor h,
                    ExecContext& ctx) {
  for_each_piece(x, h.size(1), ctx, [&](int64_t token, int64_t begin, int64_t end) {
    NeuronList gates = active_neurons(active, token, begin, end);
    multiply(rows.gate, rows.gate_bias, x.row<float>(token), gates, ctx.isa);
    activate_values(rows.activation, gates.values.data(), gates.count);
    std::fill(h.row<float>(token) + begin, h.row<float>(token) + end, 0.0f);
    multiply_by_up(gates, rows, x.row<float>(token), h.row<float>(token), ctx.isa);
  });
}

void plain_rows_cpu(const Tensor& x, const PlainRows& rows, const Tensor& active, Tensor h,
                    ExecContext& ctx) {
  for_each_piece(x, h.size(1), ctx, [&](int64_t token, int64_t begin, int64_t end) {
    NeuronList list = active_neurons(active, token, begin, end);
    multiply(rows.up, rows.bias, x.row<float>(token), list, ctx.isa);
    activate_values(rows.activation, list.values.data(), list.count);
    float* const out = h.row<float>(token);
    std::fill(out + begin, out + end, 0.0f);
    for (size_t k = 0; k < list.rows().size(); ++k) {
      out[list.neurons[k]] = list.values[k];
    }
  });
}

void up_rows_cpu(const Tensor& x, const UpRows& rows, const Tensor& g, Tensor h, ExecContext& ctx) {
  for_each_piece(x, h.size(1), ctx, [&](int64_t token, int64_t begin, int64_t end) {
    NeuronList gates = active_neurons({}, token, begin, end);
    std::copy(g.row<float>(token) + begin, g.row<float>(token) + end, gates.values.data());
    activate_values(rows.activation, gates.values.data(), gates.count);
    std::fill(h.row<float>(token) + begin, h.row<float>(token) + end, 0.0f);
    multiply_by_up(gates, rows, x.row<float>(token), h.row<float>(token), ctx.isa);
  });
}

}  // namespace sparsellm
