#pragma once

#include "sparse/general_sparse/cuda/plan_product_cuda.h"
#include "sparse/general_sparse/device/array_plan.cuh"

// Kernels of plans that are compiled with the program (device/plan_product.cuh says what they do):
// C is an ArrayPlan, or another struct of its kind.
namespace sparsellm::general_sparse {

template <class C>
__global__ void __launch_bounds__(PlanKernel<C>::kThreads)
    plan_product_kernel(const __grid_constant__ PlanOperands operands) {
  multiply_by_plan<C>(operands);
}

template <class C>
__global__ void __launch_bounds__(PlanKernel<C>::kThreads)
    plan_block_rows_kernel(const __grid_constant__ PlanOperands operands) {
  add_block_rows<C>(operands);
}

template <class C>
PlanKernels plan_kernels() {
  PlanKernels kernels{.product = reinterpret_cast<const void*>(plan_product_kernel<C>)};
  if constexpr (C::kPlan.block.ends == RowEnds::split) {
    kernels.block_rows = reinterpret_cast<const void*>(plan_block_rows_kernel<C>);
  }
  return kernels;
}

}  // namespace sparsellm::general_sparse
