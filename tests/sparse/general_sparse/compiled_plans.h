#pragma once

#include <span>

#include "sparse/general_sparse/cuda/plan_product_cuda.h"

namespace sparsellm::testing {

// Kernels that were compiled with the test, for any encoding of single rows with u16 positions.
struct CompiledPlan {
  general_sparse::KernelPlan plan;
  DType dtype = DType::f32;
  general_sparse::PlanKernels kernels;
};
std::span<const CompiledPlan> compiled_plans();

}  // namespace sparsellm::testing
