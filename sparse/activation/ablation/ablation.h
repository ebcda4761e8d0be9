#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

// The ablation of a gated MLP whose neurons are predicted to be zero: the same MLP with and without
// the two ideas that SparseInfer has beside its prediction (Shin et al., DATE 2025, section IV-B,
// figure 4), in simple kernels as the paper has them: a warp per row, which returns if the flag of
// the row says so. What the engine runs is sparse/activation/fused_mlp.h.
//
// For measurements only: in the library sparsellm_ablation, which nothing that runs models links.
namespace sparsellm {

enum class MlpAblation : uint8_t {
  neither,          // gate, up and their product are three kernels; nothing but what was predicted
                    // is skipped
  fused_kernels,    // +KF: these three in one
  actual_sparsity,  // +AS: up and down also skip what turned out to be zero
  both,
  concurrent,  // as `neither`, with gate and up at the same time: so up cannot know what gate found
  atomics,     // as `both`, with down as printed: rows are added to y by atomic additions
};
inline constexpr std::array kMlpAblations{MlpAblation::neither,         MlpAblation::fused_kernels,
                                          MlpAblation::actual_sparsity, MlpAblation::both,
                                          MlpAblation::concurrent,      MlpAblation::atomics};
std::string_view name_of(MlpAblation variant);  // "neither", "+KF", "+AS", "+KF+AS", ...
// Whether rows of up and down that turned out to be zero are left out.
bool skips_actual_zeros(MlpAblation variant);

// f16 or bf16 on CUDA, all of one dtype, with any strides of rows; sums are in f32.
struct AblatedMlpOperands {
  Tensor x;                // [1, inputs]
  Tensor gate;             // [neurons, inputs]
  Tensor up;               // [neurons, inputs]
  Tensor down;             // [neurons, outputs]: the transpose of the down projection
  float threshold = 0.0f;  // of FATReLU
  Tensor active;           // u8 [1, neurons], 0: predicted to be zero
  Tensor y;                // [1, outputs]
};

class AblatedMlp {
 public:
  virtual ~AblatedMlp() = default;
  // y = down(fatrelu(gate(x)) * up(x)) of the neurons that are active. Can be captured in a graph.
  // The context is that of the constructor, with a workspace of ablated_mlp_workspace_bytes().
  virtual void enqueue(const AblatedMlpOperands& operands, const ExecContext& ctx) = 0;
};

// Throws Error for a context without a CUDA device.
std::unique_ptr<AblatedMlp> ablate_mlp(MlpAblation variant, const ExecContext& ctx);
int64_t ablated_mlp_workspace_bytes(int64_t neurons, int64_t outputs);

}  // namespace sparsellm
