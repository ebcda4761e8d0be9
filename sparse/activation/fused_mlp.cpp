#include "sparse/activation/fused_mlp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/checks.h"
#include "sparse/activation/fused_mlp_device.h"

namespace sparsellm {
namespace {

constexpr std::string_view kFusedOp = "fused_mlp";
constexpr int64_t kFusedAlignment = 16;  // bytes
constexpr int64_t kMostNeurons = 65520;

bool has_aligned_rows(const Tensor& x) {
  const int64_t stride = x.row_stride() * size_of(x.dtype());
  return reinterpret_cast<std::uintptr_t>(x.raw()) % kFusedAlignment == 0 &&
         (x.size(0) <= 1 || (stride % kFusedAlignment == 0 &&
                             stride <= std::numeric_limits<uint32_t>::max() / x.size(0)));
}

void check_fused_bias(std::string_view name, const Tensor& bias, int64_t size, const Tensor& x,
                      const ExecContext& ctx) {
  if (!bias.empty()) {
    check_tensor({kFusedOp, name}, bias, Elements::activation, {size}, ctx);
    check_same_dtype({kFusedOp, name}, bias, x);
  }
}

}  // namespace

bool fused_mlp_fits(const FusedMlp& mlp, const ExecContext& ctx) {
  constexpr int64_t kInputs = 128;
  constexpr int64_t kOutputs = 8;
  return ctx.device.is_cuda() && mlp.up.size(1) % kInputs == 0 &&
         mlp.down.size(1) % kOutputs == 0 && mlp.up.size(0) > 0 && mlp.up.size(0) <= kMostNeurons &&
         mlp.signs.nonzero.empty() && has_aligned_rows(mlp.up) && has_aligned_rows(mlp.down) &&
         (mlp.gate.empty() || has_aligned_rows(mlp.gate)) &&
         (mlp.signs.signs.empty() ||
          (has_aligned_rows(mlp.signs.signs) && mlp.signs.signs.contiguous())) &&
         fused_mlp_fits_cuda(mlp, ctx);
}

void fused_mlp(const Tensor& x, const Tensor& positions, const FusedMlp& mlp, Tensor y,
               ExecContext& ctx) {
  const int64_t neurons = mlp.up.size(0);
  check_tensor({kFusedOp, "x"}, x, Elements::activation, {kAnySize, kAnySize}, ctx);
  const int64_t in = x.size(1);
  check_tensor({kFusedOp, "up"}, mlp.up, Elements::activation, {kAnySize, in}, ctx);
  check_same_dtype({kFusedOp, "x and up"}, x, mlp.up);
  if (!mlp.gate.empty()) {
    check_tensor({kFusedOp, "gate"}, mlp.gate, Elements::activation, {neurons, in}, ctx);
    check_same_dtype({kFusedOp, "x and gate"}, x, mlp.gate);
  }
  check_tensor({kFusedOp, "down"}, mlp.down, Elements::activation, {neurons, kAnySize}, ctx);
  check_same_dtype({kFusedOp, "x and down"}, x, mlp.down);
  check_tensor({kFusedOp, "y"}, y, Elements::activation, {x.size(0), mlp.down.size(1)}, ctx);
  check_same_dtype({kFusedOp, "x and y"}, x, y);
  check_same_or_disjoint({kFusedOp, "x and y"}, x, y);
  if (!positions.empty()) {
    check_tensor({kFusedOp, "positions"}, positions, Elements::i32, {x.size(0)}, ctx);
  }
  check_fused_bias("gate_bias", mlp.gate_bias, neurons, x, ctx);
  check_fused_bias("up_bias", mlp.up_bias, neurons, x, ctx);
  check_fused_bias("down_bias", mlp.down_bias, mlp.down.size(1), x, ctx);
  const bool predicts = mlp.gates.empty();
  if (predicts) {
    check_tensor({kFusedOp, "signs"}, mlp.signs.signs, Elements::u32,
                 {neurons, sign_word_count(in)}, ctx);
    require(std::isfinite(mlp.prediction.alpha) && mlp.prediction.alpha > 0.0f,
            "{}: alpha is {}; expected a finite number above 0", kFusedOp, mlp.prediction.alpha);
  } else {
    check_tensor({kFusedOp, "gates"}, mlp.gates, Elements::activation, {x.size(0), neurons}, ctx);
    check_same_dtype({kFusedOp, "x and gates"}, x, mlp.gates);
    require(mlp.gate.empty() && mlp.signs.signs.empty(),
            "{}: gates were computed, and their weights or signs are given, too", kFusedOp);
  }
  const auto kind = mlp.activation.kind;
  require(kind == Activation::Kind::relu || kind == Activation::Kind::fatrelu,
          "{}: after {} few neurons are zero; expected relu or fatrelu", kFusedOp, name_of(kind));
  require(fused_mlp_fits(mlp, ctx) && has_aligned_rows(x),
          "{}: no kernel of this device takes {} neurons of {} inputs and {} outputs as they are",
          kFusedOp, neurons, in, mlp.down.size(1));
  for (int64_t first = 0; first < x.size(0); first += kFusedTokens) {
    const int64_t tokens = std::min(kFusedTokens, x.size(0) - first);
    FusedMlp part = mlp;
    part.gates = predicts ? Tensor() : mlp.gates.rows(first, tokens);
    fused_mlp_cuda(x.rows(first, tokens),
                   positions.empty() ? positions : positions.rows(first, tokens), part,
                   y.rows(first, tokens), ctx);
  }
}

}  // namespace sparsellm
