#include "sparse/activation/active_rows.h"

#include <cmath>
#include <string_view>

#include "kernels/checks.h"
#include "sparse/activation/active_rows_device.h"

namespace sparsellm {
namespace {

// `x` is what the rows are multiplied by.
void check_rows(const Operand& what, const RowAccess& rows, int64_t neurons, int64_t columns,
                const Tensor& x, const ExecContext& ctx) {
  require(rows.device() == ctx.device && rows.rows() == neurons && rows.columns() == columns,
          "{}: {} is [{}, {}] on {}; expected [{}, {}] on {}", what.op, what.name, rows.rows(),
          rows.columns(), to_string(rows.device()), neurons, columns, to_string(ctx.device));
  if (ctx.device.is_cuda()) {
    const auto* const dense = dynamic_cast<const DenseRows*>(&rows);
    require(dense != nullptr, "{}: {} is {}; on CUDA only dense rows are read", what.op, what.name,
            rows.name());
    require(dense->weight().dtype() == x.dtype(),
            "{}: {} is {} and its factor {}; on CUDA they have one dtype", what.op, what.name,
            name_of(dense->weight().dtype()), name_of(x.dtype()));
  }
}

void check_bias(const Operand& what, const Tensor& bias, int64_t size, const ExecContext& ctx) {
  if (!bias.empty()) {
    check_tensor(what, bias, Elements::floating, {size}, ctx);
  }
}

void check_zeros(std::string_view op, const Activation& activation) {
  require(activation.kind == Activation::Kind::relu || activation.kind == Activation::Kind::fatrelu,
          "{}: after {} few neurons are zero; expected relu or fatrelu", op,
          name_of(activation.kind));
  require(std::isfinite(activation.threshold), "{}: the threshold of fatrelu is {}", op,
          activation.threshold);
}

// x and h, and the mask of gated_rows() and plain_rows().
void check_first_layer(std::string_view op, const Tensor& x, const Tensor& h, int64_t neurons,
                       const Tensor& active, const ExecContext& ctx) {
  check_tensor({op, "x"}, x, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_tensor({op, "h"}, h, Elements::activation, {x.size(0), neurons}, ctx);
  check_same_dtype({op, "x and h"}, x, h);
  check_disjoint({op, "x and h"}, x, h);
  if (!active.empty()) {
    check_tensor({op, "active"}, active, Elements::u8, {x.size(0), neurons}, ctx);
  }
}

}  // namespace

void gated_rows(const Tensor& x, const GatedRows& rows, const Tensor& active, Tensor h,
                ExecContext& ctx) {
  constexpr std::string_view kOp = "gated_rows";
  const int64_t neurons = rows.gate.rows();
  check_zeros(kOp, rows.activation);
  check_first_layer(kOp, x, h, neurons, active, ctx);
  check_rows({kOp, "gate"}, rows.gate, neurons, x.size(1), x, ctx);
  check_rows({kOp, "up"}, rows.up, neurons, x.size(1), x, ctx);
  check_bias({kOp, "gate_bias"}, rows.gate_bias, neurons, ctx);
  check_bias({kOp, "up_bias"}, rows.up_bias, neurons, ctx);
  ctx.device.is_cuda() ? gated_rows_cuda(x, rows, active, h, ctx)
                       : gated_rows_cpu(x, rows, active, h, ctx);
}

void plain_rows(const Tensor& x, const PlainRows& rows, const Tensor& active, Tensor h,
                ExecContext& ctx) {
  constexpr std::string_view kOp = "plain_rows";
  const int64_t neurons = rows.up.rows();
  check_zeros(kOp, rows.activation);
  check_first_layer(kOp, x, h, neurons, active, ctx);
  check_rows({kOp, "up"}, rows.up, neurons, x.size(1), x, ctx);
  check_bias({kOp, "bias"}, rows.bias, neurons, ctx);
  ctx.device.is_cuda() ? plain_rows_cuda(x, rows, active, h, ctx)
                       : plain_rows_cpu(x, rows, active, h, ctx);
}

void up_rows(const Tensor& x, const UpRows& rows, const Tensor& g, Tensor h, ExecContext& ctx) {
  constexpr std::string_view kOp = "up_rows";
  const int64_t neurons = rows.up.rows();
  check_zeros(kOp, rows.activation);
  check_first_layer(kOp, x, h, neurons, {}, ctx);
  check_tensor({kOp, "g"}, g, Elements::activation, {x.size(0), neurons}, ctx);
  check_same_dtype({kOp, "g and h"}, g, h);
  check_same_or_disjoint({kOp, "g and h"}, g, h);
  check_rows({kOp, "up"}, rows.up, neurons, x.size(1), x, ctx);
  check_bias({kOp, "up_bias"}, rows.up_bias, neurons, ctx);
  ctx.device.is_cuda() ? up_rows_cuda(x, rows, g, h, ctx) : up_rows_cpu(x, rows, g, h, ctx);
}

void down_rows(const Tensor& h, const RowAccess& wt, const Tensor& bias, Tensor y,
               ExecContext& ctx) {
  down_rows(h, wt, bias, {}, y, ctx);
}

void down_rows(const Tensor& h, const RowAccess& wt, const Tensor& bias, const NeuronTally& tally,
               Tensor y, ExecContext& ctx) {
  constexpr std::string_view kOp = "down_rows";
  check_tensor({kOp, "h"}, h, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_tensor({kOp, "y"}, y, Elements::activation, {h.size(0), kAnySize}, ctx);
  check_same_dtype({kOp, "h and y"}, h, y);
  check_disjoint({kOp, "h and y"}, h, y);
  check_rows({kOp, "wt"}, wt, h.size(1), y.size(1), h, ctx);
  check_bias({kOp, "bias"}, bias, y.size(1), ctx);
  check_tally(kOp, tally, h, ctx);
  if (ctx.device.is_cuda()) {
    down_rows_cuda(h, wt, bias, tally, y, ctx);
    return;
  }
  down_rows_cpu(h, wt, bias, y, ctx);
  count_neurons_cpu(h, tally);
}

int64_t down_rows_workspace_bytes(Device device, int64_t neurons, int64_t out, int64_t tokens) {
  return device.is_cuda() ? down_rows_workspace_bytes_cuda(neurons, out, tokens)
                          : down_rows_workspace_bytes_cpu(neurons, out, tokens);
}

}  // namespace sparsellm
