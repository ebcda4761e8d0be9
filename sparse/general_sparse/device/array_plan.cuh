#pragma once

#include "sparse/general_sparse/device/plan_product.cuh"
#include "sparse/general_sparse/plan.h"

namespace sparsellm::general_sparse {

// What a plan's kernels are made of (plan_product.cuh) where they are compiled with the program:
// offsets are arrays of u32. The matrix has parts of at most `kLoads` loads for each group of
// threads; any, if that is 0.
template <KernelPlan kKernelPlan, class ValueType, class PositionType, int kRows, int kLoads>
struct ArrayPlan {
  using Value = ValueType;
  using Position = PositionType;
  static constexpr KernelPlan kPlan = kKernelPlan;
  static constexpr int R = kRows;
  static constexpr int kPartGroups = part_groups(kKernelPlan);
  static constexpr bool kPartIsRow = part_is_row(kKernelPlan);
  static constexpr int kGroupLoads = kLoads;

  static __device__ unsigned part_begin(unsigned i, const void* table) {
    return static_cast<const unsigned*>(table)[i];
  }
  static __device__ unsigned row(unsigned i, const void* table) {
    return static_cast<const unsigned*>(table)[i];
  }
};

}  // namespace sparsellm::general_sparse
