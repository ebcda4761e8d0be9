#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Whether a value is 0 or -0; a NaN is not.
constexpr bool is_zero(Half value) { return (value.bits & 0x7fffu) == 0; }
constexpr bool is_zero(BFloat16 value) { return (value.bits & 0x7fffu) == 0; }
constexpr bool is_zero(float value) { return (std::bit_cast<uint32_t>(value) & 0x7fffffffu) == 0; }

// Elements of a floating matrix in host memory that are neither 0 nor -0; a NaN is one.
int64_t count_nonzeros(const Tensor& w, ThreadPool& threads);

}  // namespace sparsellm
