#pragma once

#include <cstdint>

#include "kernels/device/cuda_types.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"
#include "sparse/activation/cuda/sign_masks.cuh"

// How x votes (sign_predictor.h), made by each block for itself, in one of two forms:
// - bytes: q, the signed weights of the votes, in the order in which products on the tensor cores
//   take them (vote_products.cuh): of each segment of 512 columns 16 bytes for each half of a byte
//   of the sign words, word of a lane and lane of four, all lanes of a half side by side;
// - bits, where a vote counts 1 and tokens are few: of each 32 columns a word of signs, and one of
//   elements that are not zero.
namespace sparsellm::fused {

template <class T>
class FusedX {
 public:
  __device__ FusedX(const FusedParameters& p, const FusedBlock& b, FusedShared& shared,
                    uint8_t* memory)
      : p_(p),
        b_(b),
        shared_(shared),
        memory_(memory + p.at.votes),
        token_stride_(p.shape.vote_stride()),
        vectors_(p.shape.in / 8),
        all_(vectors_ * p.shape.tokens) {}

  // All threads; a barrier has to follow.
  __device__ void read() const {
    uint4 values[kAtOnce];
    if (!p_.weighted) {
      for_all(values, true, [&](const uint4& v, const Place& place) { read_signs(v, place); });
      return;
    }
    for_all(values, true, [&](const uint4& v, const Place& place) {
      const float sum = sum_of_squares(v);
      if (place.there && b_.lane % 16 == 0) {
        shared_.squares[place.token][place.vector / 16] = sum;
      }
    });
    __syncthreads();
    if (b_.warp < p_.shape.tokens) {
      const float scale = scale_of(b_.warp);
      if (b_.lane == 0) {
        shared_.scales[b_.warp] = scale;
        shared_.voteless[b_.warp] = scale == 0.f;
      }
    }
    __syncthreads();
    const bool are_there = all_ <= kAtOnce * kThreads;
    for_all(values, !are_there,
            [&](const uint4& v, const Place& place) { read_weights(v, place); });
  }

  // Of a token and a segment: 16 bytes for each number of vote_products::add_segment(), half of a
  // byte and lane of four, which are 64 bytes apart.
  __device__ uint32_t bytes_at(int token, int segment) const {
    return shared_address(memory_) + token * token_stride_ + segment * 512;
  }
  // Of a token: words of signs. The same of elements that are not zero lie bits_stride() further.
  __device__ uint32_t bits_at(int token) const {
    return shared_address(memory_) + token * token_stride_;
  }
  __device__ uint32_t bits_stride() const { return p_.shape.segments() * 64; }

 private:
  static constexpr int kAtOnce = 4;  // loads that are waited for together
  // Of a vector of eight elements.
  struct Place {
    bool there;
    int token;
    int vector;  // of the token
  };

  // By whole warps; vectors of half a warp belong to one token.
  template <class Body>
  __device__ void for_all(uint4 (&values)[kAtOnce], bool loads, Body&& body) const {
    const int count = (all_ + kThreads - 1) / kThreads;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      if (loads) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const Place place = place_of((first + k) * kThreads + threadIdx.x);
          values[k] = place.there ? *reinterpret_cast<const uint4*>(x_of(place)) : uint4{};
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k >= count) {
          break;
        }
        body(values[k], place_of((first + k) * kThreads + threadIdx.x));
      }
    }
  }
  __device__ Place place_of(int i) const {
    const bool there = i < all_;
    const int token = there ? static_cast<int>((static_cast<float>(i) + 0.5f) * p_.per_vector) : 0;
    return {there, token, i - token * vectors_};
  }
  __device__ const T* x_of(const Place& place) const {
    return static_cast<const T*>(p_.x) + int64_t{place.token} * p_.x_stride + place.vector * 8;
  }

  __device__ void read_signs(const uint4& values, const Place& place) const {
    const SignMasks masks = sign_masks<T>(values);
    if (p_.counts_bits) {
      if (place.there) {
        const uint32_t to = bits_at(place.token) + place.vector;
        store_byte(to, bits_of(masks.negative));
        store_byte(to + bits_stride(), bits_of(masks.nonzero));
      }
    } else {
      uint32_t bytes[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // 8, 4, 2 and 1, and the same with the other sign.
        constexpr uint32_t kPositive = 0x01020408;
        constexpr uint32_t kNegative = 0xfffefcf8;
        bytes[half] =
            ((masks.negative[half] & (kPositive ^ kNegative)) ^ kPositive) & masks.nonzero[half];
      }
      store_votes(bytes, place);
    }
    const auto count = [&](uint32_t low, uint32_t high) {
      return __popc((low & 0x01010101) | (high & 0x02020202));
    };
    const int votes = count(masks.nonzero[0], masks.nonzero[1]);
    const int negative =
        count(masks.nonzero[0] & masks.negative[0], masks.nonzero[1] & masks.negative[1]);
    add_totals(votes, votes - 2 * negative, place);
    if (!masks.finite) {
      shared_.voteless[place.token] = 1;
    }
  }
  static __device__ void store_byte(uint32_t to, uint32_t byte) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(byte) : "memory");
  }

  static __device__ void to_f32(const uint4& v, float (&x)[8]) {
    const T* const elements = reinterpret_cast<const T*>(&v);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      x[k] = f32_of(elements[k]);
    }
  }

  // Of 128 elements, of half a warp: pairs of neighbours, then of pairs, which is the order of
  // sign_predictor.h.
  static __device__ float sum_of_squares(const uint4& values) {
    float x[8];
    to_f32(values, x);
#pragma unroll
    for (float& e : x) {
      e = __fmul_rn(e, e);
    }
    float sum = __fadd_rn(__fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3])),
                          __fadd_rn(__fadd_rn(x[4], x[5]), __fadd_rn(x[6], x[7])));
#pragma unroll
    for (int d = 1; d < kWarp / 2; d *= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, d));
    }
    return sum;
  }

  // 5 / RMS; 0 if there are no votes. By whole warps.
  __device__ float scale_of(int t) const {
    const float4 squares = *reinterpret_cast<const float4*>(shared_.squares[t] + 4 * b_.lane);
    float sum = __fadd_rn(__fadd_rn(squares.x, squares.y), __fadd_rn(squares.z, squares.w));
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, d));
    }
    const float scale = __fdiv_rn(5.f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(p_.shape.in))));
    return scale > 0.f && scale < __int_as_float(0x7f800000) ? scale : 0.f;
  }

  // A bit of a nibble of the sign words is worth its place: with the factors 8, 4, 2 and 1 of q all
  // are worth 8. Of a token without votes the bytes are of no use, and anything.
  __device__ void read_weights(const uint4& values, const Place& place) const {
    const float scale = shared_.scales[place.token];
    float q[8];
    to_f32(values, q);
    constexpr float kLargest = 15.f;
    constexpr float kRounds = 12582912.f;  // 1.5 * 2^23: in a sum with it, a byte is the integer
    float votes = 0.f;
    float balance = 0.f;
    uint32_t integers[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float scaled = fmaxf(-kLargest, fminf(kLargest, __fmul_rn(q[k], scale)));
      const float rounded = __fsub_rn(__fadd_rn(scaled, kRounds), kRounds);
      votes += fabsf(rounded);
      balance += rounded;
      integers[k] = __float_as_uint(__fmaf_rn(rounded, static_cast<float>(8 >> k % 4), kRounds));
    }
    uint32_t bytes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* const of_half = integers + 4 * half;
      bytes[half] = __byte_perm(__byte_perm(of_half[0], of_half[1], 0x0040),
                                __byte_perm(of_half[2], of_half[3], 0x0040), 0x5410);
    }
    store_votes(bytes, place);
    add_totals(low_integer(votes), low_integer(balance), place);
  }
  // Of an integer in f32, by a sum whose lowest bits it is.
  static __device__ int low_integer(float value) {
    constexpr float kRounds = 12582912.f;
    return __float_as_int(__fadd_rn(value, kRounds)) - __float_as_int(kRounds);
  }

  // Bytes of the votes of a vector, of each nibble of a byte of sign words those of its four bits.
  // By whole warps.
  __device__ void store_votes(const uint32_t (&bytes)[2], const Place& place) const {
    const int word = place.vector / 4;
    const int i = word % 4;
    const int quad = word / 4 % 4;
    const uint32_t to = bytes_at(place.token, word / 16) + i * 128 + quad * 16 + b_.lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t of_bit = transposed(bytes[half]);
      if (place.there) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + half * 64), "r"(of_bit) : "memory");
      }
    }
  }
  // Of four lanes with four bytes each: byte i of lane j becomes byte j of lane i.
  __device__ uint32_t transposed(uint32_t word) const {
    const uint32_t next = __shfl_xor_sync(~0u, word, 1);
    word = __byte_perm(word, next, b_.lane % 2 == 0 ? 0x6240 : 0x3715);
    const uint32_t other = __shfl_xor_sync(~0u, word, 2);
    return __byte_perm(word, other, b_.lane % 4 < 2 ? 0x5410 : 0x3276);
  }

  // By whole warps. The sums of 16 lanes are below 2^15.
  __device__ void add_totals(int votes, int balance, const Place& place) const {
    int both = votes * 65536 + balance;
#pragma unroll
    for (int d = 1; d < kWarp / 2; d *= 2) {
      both += __shfl_xor_sync(~0u, both, d);
    }
    if (place.there && b_.lane % 16 == 0) {
      const int low = static_cast<int16_t>(both);
      atomicAdd(&shared_.total[place.token], (both - low) / 65536);
      atomicAdd(&shared_.balance[place.token], low);
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  uint8_t* memory_;
  int token_stride_;
  int vectors_;  // of x of a token: whole halves of warps
  int all_;
};

}  // namespace sparsellm::fused
