#pragma once

namespace sparsellm {

// Elements i and head_dim / 2 + i of a head, rotated together by RoPE (kernels/rope.h): the same
// bits in every kernel, whatever the compiler makes of its products and sums.
struct Rotated {
  float low;
  float high;
};

__device__ inline Rotated rotate(float low, float high, float cosine, float sine) {
  return {__fmaf_rn(low, cosine, -__fmul_rn(high, sine)),
          __fmaf_rn(high, cosine, __fmul_rn(low, sine))};
}

}  // namespace sparsellm
