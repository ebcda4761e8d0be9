#pragma once

#include <cuda.h>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"

namespace sparsellm {

// A function of the driver, which programs are not linked to, so that they start without one.
// `version` is that of the CUDA release which has the declaration, as 12000.
template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
  require(found == cudaDriverEntryPointSuccess, "the driver has no {}", name);
  return reinterpret_cast<Function>(function);
}

}  // namespace sparsellm
