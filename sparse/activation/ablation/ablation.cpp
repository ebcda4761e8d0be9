#include "sparse/activation/ablation/ablation.h"

namespace sparsellm {

std::string_view name_of(MlpAblation variant) {
  switch (variant) {
    case MlpAblation::neither:
      return "neither";
    case MlpAblation::fused_kernels:
      return "+KF";
    case MlpAblation::actual_sparsity:
      return "+AS";
    case MlpAblation::both:
      return "+KF+AS";
    case MlpAblation::concurrent:
      return "concurrent gate and up";
    case MlpAblation::atomics:
      return "+KF+AS, atomics";
  }
  return "?";
}

bool skips_actual_zeros(MlpAblation variant) {
  return variant == MlpAblation::actual_sparsity || variant == MlpAblation::both ||
         variant == MlpAblation::atomics;
}

}  // namespace sparsellm
