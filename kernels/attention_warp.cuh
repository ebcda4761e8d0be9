#pragma once

#include <cstdint>

#include "kernels/attention_split.h"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/paged_kv.h"

// What a warp does of the attention of decode rows (kernels/attention_decode_cuda.cu).
namespace sparsellm::attention_decode {

constexpr int kTokens = static_cast<int>(kPageSize);
constexpr int kTileDims = 64;  // of a head, what a warp covers at 16 bytes of V a lane
constexpr float kLog2E = 1.44269504f;
// Softmax weights are 2^15 times too large, which the division by their sum takes away again: as
// f16 (up to 65504) a weight is then normal down to 2^-29 of the largest one.
constexpr float kWeightExponent = 15.0f;

static_assert(kTokens == 16, "a page is the k dimension of an mma");

// Eight consecutive 16-bit elements.
struct Eight {
  unsigned pairs[4];
};

__device__ inline Eight load_eight(const void* from) {
  // Not by the path of what never changes: the kernel may begin before the one that appends.
  const uint4 x = *static_cast<const uint4*>(from);
  return {{x.x, x.y, x.z, x.w}};
}

// high + low is (x, y) with twice the bits of T.
struct SplitPair {
  unsigned high;
  unsigned low;
};

__device__ inline SplitPair split_pair(float x, float y, __half) {
  const __half2 high = __floats2half2_rn(x, y);
  const __half2 low = __floats2half2_rn(x - __low2float(high), y - __high2float(high));
  return {reinterpret_cast<const unsigned&>(high), reinterpret_cast<const unsigned&>(low)};
}
__device__ inline SplitPair split_pair(float x, float y, __nv_bfloat16) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(x, y);
  const __nv_bfloat162 low = __floats2bfloat162_rn(x - __low2float(high), y - __high2float(high));
  return {reinterpret_cast<const unsigned&>(high), reinterpret_cast<const unsigned&>(low)};
}

// Over the four lanes of a quad, which share a query head; each of them gets the result.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The factor that brings sums relative to `from` to the larger `to`. Where there was no score yet,
// or none but NaN, `from` is -infinity and maybe `to` too; the sums are then 0, or NaN and stay so.
__device__ inline float rescale(float from, float to) {
  return exp2f((from - (to == -INFINITY ? 0.0f : to)) * kLog2E);
}

// The part of a warp in the attention of eight query heads over the pages of one key/value head.
// With lane = 4 * g + c, the lane has, straight from memory in loads of 16 bytes,
//   of k  the tokens g and g + 8, of each 32 dims the eight from 8 * c on
//   of v  the tokens 2c, 2c + 1, 2c + 8 and 2c + 9, of each 64 dims the eight from 8 * g on
// which are operands of mma.m16n8k16 as they are (k) and with the pairs of two tokens interleaved
// (v), in an order of the dims that the other operand or the result follows:
//   scores [heads, tokens] = q k^T     q is padded with eight rows of zeros
//   values [dims, heads] = v^T w^T     the scores of a lane are its elements of w^T
// The weights w are split in two numbers of type T each, so that the result is as exact as with
// weights in f32.
template <class T, int kTiles>
class WarpAttention {
 public:
  __device__ explicit WarpAttention(int lane) : g_(lane / 4), c_(lane % 4) {}

  // `page` is the 16 tokens of one head. Slots after a request's last token are multiplied like
  // the others; their scores are replaced.
  __device__ void load_keys(const T* page, int head_dim) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) {
        const int dim = 32 * j + 8 * c_;
        keys_[half][j] =
            dim < head_dim ? load_eight(page + (g_ + 8 * half) * head_dim + dim) : Eight{};
      }
    }
  }

  // Slots from `tokens` on become 0: what they hold may be NaN.
  __device__ void load_values(const T* page, int tokens, int head_dim) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int dim = kTileDims * t + 8 * g_;
        values_[i][t] = token(i) < tokens && dim < head_dim
                            ? load_eight(page + token(i) * head_dim + dim)
                            : Eight{};
      }
    }
  }

  // With the loaded keys. q: of head g, 16-byte aligned.
  __device__ void compute_scores(const T* q, int tokens, float scale) {
    float products[2][4] = {};
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      const uint4 x = *reinterpret_cast<const uint4*>(q + 32 * j + 8 * c_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Eight& key = keys_[half][j];
        mma<T>(products[half], {x.x, 0u, x.y, 0u}, key.pairs[0], key.pairs[1]);
        mma<T>(products[half], {x.z, 0u, x.w, 0u}, key.pairs[2], key.pairs[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores_[i] = token(i) < tokens ? products[i / 2][i % 2] * scale : -INFINITY;
    }
  }

  // In the place of what was loaded for a token of the page.
  __device__ void replace_key(int token, const T* key, int head_dim) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) {
        const int dim = 32 * j + 8 * c_;
        if (g_ + 8 * half == token && dim < head_dim) {
          keys_[half][j] = load_eight(key + dim);
        }
      }
    }
  }
  __device__ void replace_value(int token_in_page, const T* value, int head_dim) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int dim = kTileDims * t + 8 * g_;
        if (token(i) == token_in_page && dim < head_dim) {
          values_[i][t] = load_eight(value + dim);
        }
      }
    }
  }

  // As if the first `tokens` of the page were not there; after compute_scores() and load_values().
  __device__ void leave_out(int tokens) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token(i) < tokens) {
        scores_[i] = -INFINITY;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          values_[i][t] = Eight{};
        }
      }
    }
  }

  // Online softmax (Milakov and Gimelshein 2018) of the scores, and the loaded values by the
  // weights. Differences of scores are taken before log2(e) comes in, which would round them.
  __device__ void add_page() {
    const float page_largest =
        quad_max(fmaxf(fmaxf(scores_[0], scores_[1]), fmaxf(scores_[2], scores_[3])));
    const float largest = fmaxf(largest_, page_largest);
    const float factor = rescale(largest_, largest);
    const float base = largest == -INFINITY ? 0.0f : largest;
    largest_ = largest;
    float weights[4];
    sum_ *= factor;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[i] = exp2f(fmaf(scores_[i] - base, kLog2E, kWeightExponent));
      sum_ += weights[i];
    }
    const SplitPair first = split_pair(weights[0], weights[1], T{});
    const SplitPair second = split_pair(weights[2], weights[3], T{});

    // The columns of the lane's sums are the heads 2c and 2c + 1.
    const float factors[2] = {__shfl_sync(0xffffffffu, factor, 8 * c_),
                              __shfl_sync(0xffffffffu, factor, 8 * c_ + 4)};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        float(&sums)[4] = sums_[t][u];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[i] *= factors[i % 2];
        }
        constexpr unsigned kLowHalves = 0x5410;
        constexpr unsigned kHighHalves = 0x7632;
        const unsigned v0 = values_[0][t].pairs[u];
        const unsigned v1 = values_[1][t].pairs[u];
        const unsigned v2 = values_[2][t].pairs[u];
        const unsigned v3 = values_[3][t].pairs[u];
        const unsigned transposed[4] = {
            __byte_perm(v0, v1, kLowHalves), __byte_perm(v0, v1, kHighHalves),
            __byte_perm(v2, v3, kLowHalves), __byte_perm(v2, v3, kHighHalves)};
        mma<T>(sums, transposed, first.high, second.high);
        mma<T>(sums, transposed, first.low, second.low);
      }
    }
  }

  // largest, weight [kHeadsPerBlock] and values [kHeadsPerBlock][value_stride] get the sums of the
  // first `heads` heads.
  __device__ void store(int heads, float* largest, float* weight, float* values,
                        int value_stride) const {
    const float sum = quad_sum(sum_);
    if (c_ == 0) {
      largest[g_] = largest_;
      weight[g_] = sum;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * c_ + i < heads) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float* to = values + (2 * c_ + i) * value_stride + kTileDims * t + 8 * g_;
#pragma unroll
          for (int u = 0; u < 4; u += 2) {
            *reinterpret_cast<float4*>(to + 2 * u) = make_float4(
                sums_[t][u][i], sums_[t][u][i + 2], sums_[t][u + 1][i], sums_[t][u + 1][i + 2]);
          }
        }
      }
    }
  }

 private:
  // Of the lane's scores and values.
  __device__ int token(int i) const { return 2 * c_ + i % 2 + 8 * (i / 2); }

  int g_;
  int c_;
  Eight keys_[2][2 * kTiles];  // of the tokens g, g + 8
  Eight values_[4][kTiles];    // of the tokens token(0), ..., token(3)
  float scores_[4];            // of head g and token(i)
  // Sums so far: of head g, in `sum_` over the lane's own tokens, ...
  float largest_ = -INFINITY;
  float sum_ = 0.0f;
  // ... and at [t][u][i] of the head 2c + i % 2 and the dim 64t + 8g + 2u + i / 2.
  float sums_[kTiles][4][4] = {};
};

}  // namespace sparsellm::attention_decode
