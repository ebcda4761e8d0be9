#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// FP8 in e4m3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022) with one scale for all of
// a matrix: a code c stands for c * kFp8Scale. That suits random operands in [-1, 1), whose largest
// is then 256 of 448, and is a power of two: what is rounded is exact in f16 and bf16, too. All
// tensors are contiguous and on the context's CUDA device. Nothing is waited for. In a CPU-only
// build no_cuda.cpp.
inline constexpr float kFp8Scale = 0x1p-8f;

// Rounds x, f16 or bf16, in place: to the nearest, ties to even, at most to the largest.
void round_to_fp8_cuda(const Tensor& x, ExecContext& ctx);

// The codes of what x is rounded to; codes u8 has the shape of x.
void encode_fp8_cuda(const Tensor& x, const Tensor& codes, ExecContext& ctx);

}  // namespace sparsellm
