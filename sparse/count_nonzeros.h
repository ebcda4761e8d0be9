#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Elements of a floating matrix in host memory that are neither 0 nor -0; a NaN is one.
int64_t count_nonzeros(const Tensor& w, ThreadPool& threads);

}  // namespace sparsellm
