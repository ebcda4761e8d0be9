#pragma once

#include <cstdint>

#include "kernels/epilogue.h"

namespace sparsellm {

// The end of products on the CPU: y[first_token + t][first_row + r] = epilogue(sums[t][r]) for
// `tokens` tokens and `rows` rows; sums f32 [tokens][stride], y f32 [all tokens, all rows].
void store_sums(const float* sums, int64_t stride, int64_t first_token, int64_t tokens,
                int64_t first_row, int64_t rows, const Epilogue& epilogue, const Tensor& y);

}  // namespace sparsellm
