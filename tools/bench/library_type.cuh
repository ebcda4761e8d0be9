#pragma once

#include <library_types.h>

#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

namespace sparsellm {

// NVIDIA's name of f16 or bf16, the types with which `library` is benchmarked. Throws Error for
// others.
inline cudaDataType_t library_type(DType dtype, std::string_view library) {
  require(dtype == DType::f16 || dtype == DType::bf16,
          "{} is benchmarked with f16 and bf16, not with {}", library, name_of(dtype));
  return dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

// The same of products of sparse matrices, which are benchmarked in f32 as well.
inline cudaDataType_t matrix_library_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : library_type(dtype, "a product of sparse matrices");
}

}  // namespace sparsellm
