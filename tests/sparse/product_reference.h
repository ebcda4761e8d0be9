#pragma once

#include "kernels/activation.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "tests/testing/compare.h"

namespace sparsellm::testing {

// x * w^T in double, [tokens, out]; x without zeros, w f16 or bf16. Terms of weights that are 0 are
// left out, which for finite x changes nothing. Magnitudes allow for the rounding of terms that are
// subnormal in f32.
Expected product(const Tensor& x, const Tensor& w, ThreadPool& threads);

// The first rows of a result [.., out]; and with a bias [out], if there is one, and ReLU, if
// wanted.
Expected first_rows(const Expected& all, int64_t rows, int64_t out);
Expected with_epilogue(Expected product, std::span<const double> bias, Activation::Kind activation);

}  // namespace sparsellm::testing
