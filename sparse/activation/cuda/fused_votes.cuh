#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"
#include "sparse/activation/cuda/vote_products.cuh"

// Counts the votes of a block's units and tells all blocks which of their neurons are active
// (sign_predictor.h). With q the signed weight of a vote, a neuron's negative votes are
//   (sum of |q| - sum of q) / 2 + sum of q where the sign of W is negative,
// and the last sum is a product on the tensor cores: of sign bits, a bit of a byte at a time, and
// q as bytes, up to eight tokens at once.
namespace sparsellm::fused {

template <class T>
class FusedVotes {
 public:
  __device__ FusedVotes(const FusedParameters& p, const FusedBlock& b, FusedShared& shared,
                        uint8_t* memory)
      : p_(p),
        b_(b),
        shared_(shared),
        votes_(reinterpret_cast<int8_t*>(memory + p.at.votes)),
        negative_(reinterpret_cast<int*>(memory + p.at.negative)),
        signs_(reinterpret_cast<uint32_t*>(memory + p.at.signs)),
        vote_stride_(p.shape.vote_stride()) {}

  // What does not depend on x, before the kernels before have ended.
  __device__ void begin() const {
    if (threadIdx.x == 0 && p_.gates == nullptr) {
      const uint32_t barrier = shared_address(&shared_.signs_there);
      barrier_init(barrier, 1);
      barriers_ready();
      const int rows = min(p_.at.resident * kUnit, p_.shape.neurons - b_.first_unit * kUnit);
      const uint32_t bytes = max(0, min(rows, b_.own_units * kUnit)) * p_.shape.words() * 4;
      barrier_expect(barrier, bytes);
      if (bytes > 0) {
        bulk_load(shared_address(signs_), sign_row(b_.first_unit * kUnit), bytes, barrier,
                  evict_first());
      }
    }
    for (int i = threadIdx.x; i < b_.own_units * kUnit * p_.shape.tokens; i += kThreads) {
      negative_[i] = 0;
    }
    if (threadIdx.x == 0) {
      shared_.skipped = 0;
      shared_.active = 0;
    }
    if (threadIdx.x < kMostTokens) {
      shared_.total[threadIdx.x] = 0;
      shared_.balance[threadIdx.x] = 0;
    }
    for (int i = threadIdx.x; i < kMostTokens * kMostSquares; i += kThreads) {
      shared_.squares[0][i] = 0.f;
    }
  }

  // x becomes votes. All threads.
  __device__ void read_x() const {
    const int vectors = p_.shape.in / 8;  // of a token: whole halves of warps
    const int all = vectors * p_.shape.tokens;
    const int loads = (all + kThreads - 1) / kThreads;
    constexpr int kAtOnce = 4;  // loads that are waited for together
    uint4 values[kAtOnce];
#pragma unroll 1
    for (int first = 0; first < loads; first += kAtOnce) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        values[k] = load_x((first + k) * kThreads + threadIdx.x, vectors, all);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k >= loads) {
          break;
        }
        const int i = (first + k) * kThreads + threadIdx.x;
        const float sum = sum_of_squares(values[k]);
        if (i < all && b_.lane % 16 == 0) {
          const int t = token_of(i);
          shared_.squares[t][(i - t * vectors) / 16] = sum;
        }
      }
    }
    __syncthreads();
    if (b_.warp < p_.shape.tokens) {
      const float scale = scale_of(b_.warp);
      if (b_.lane == 0) {
        shared_.scales[b_.warp] = scale;
      }
    }
    __syncthreads();
    const bool are_there = loads <= kAtOnce;
#pragma unroll 1
    for (int first = 0; first < loads; first += kAtOnce) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (!are_there) {
          values[k] = load_x((first + k) * kThreads + threadIdx.x, vectors, all);
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k >= loads) {
          break;
        }
        count_weights(values[k], (first + k) * kThreads + threadIdx.x, vectors, all);
      }
    }
  }

  // By all warps, which have equal shares of the items of 16 neurons and 512 columns; those of the
  // same columns one after the other.
  __device__ void count() const {
    barrier_wait(shared_address(&shared_.signs_there), 0);
    const int items = p_.shape.segments() * b_.own_units;
    const int end = items * (b_.warp + 1) / kWarpsOfBlock;
    int item = items * b_.warp / kWarpsOfBlock;
#pragma unroll 1
    while (item < end) {
      const int segment = item / b_.own_units;
      const int first = segment * b_.own_units;
      const int end_unit = min(end - first, b_.own_units);
      uint4 q[8];
      load_votes(q, segment);
#pragma unroll 1
      for (int unit = item - first; unit < end_unit; ++unit) {
        count(unit, segment, q);
      }
      item = first + end_unit;
    }
  }

  // When all votes are counted: by all warps. The first rows of active neurons are fetched into the
  // L2, where they will be by the time that all blocks know who multiplies them.
  __device__ void publish(uint64_t generation) const {
    uint32_t skipped = 0;
#pragma unroll 1
    for (int unit = b_.warp; unit < b_.own_units; unit += kWarpsOfBlock) {
      uint32_t any = 0;
#pragma unroll 1
      for (int t = 0; t < p_.shape.tokens; ++t) {
        const uint32_t bits = __ballot_sync(~0u, is_active(unit, t));
        any |= bits;
        skipped += p_.gates != nullptr || is_padding(t) ? 0 : neurons_of(unit) - __popc(bits);
        if (b_.lane == 0) {
          asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p_.active + t * b_.units +
                                                                   b_.first_unit + unit),
                       "l"(generation << kUnit | bits)
                       : "memory");
        }
      }
      if ((any >> b_.lane & 1) != 0 && unit < p_.prefetched) {
        prefetch((b_.first_unit + unit) * kUnit + b_.lane);
      }
    }
    if (p_.counters != nullptr && b_.lane == 0) {
      atomicAdd(&shared_.skipped, skipped);
    }
  }

 private:
  __device__ const T* x_of(int t) const {
    return static_cast<const T*>(p_.x) + int64_t{t} * p_.x_stride;
  }
  __device__ const uint32_t* sign_row(int neuron) const {
    return p_.signs + int64_t{neuron} * p_.shape.words();
  }

  __device__ int token_of(int i) const {
    return static_cast<int>((static_cast<float>(i) + 0.5f) * p_.per_vector);
  }
  // Vector i of all tokens'.
  __device__ uint4 load_x(int i, int vectors, int all) const {
    const int t = token_of(i);
    return i < all ? *reinterpret_cast<const uint4*>(x_of(t) + (i - t * vectors) * 8) : uint4{};
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
  static __device__ float sum_of_squares(uint4 values) {
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

  // Of vector i of all tokens'; by whole warps. A bit of a nibble of the sign words is worth its
  // place: with the factors 8, 4, 2 and 1 of q all are worth 8.
  __device__ void count_weights(uint4 values, int i, int vectors, int all) const {
    const bool there = i < all;
    const int t = there ? token_of(i) : 0;
    const float scale = shared_.scales[t];
    if (!there || scale == 0.f) {
      values = uint4{};  // where there are votes, x is finite
    }
    float q[8];
    to_f32(values, q);
    constexpr float kLargest = 15.f;
    constexpr float kRounds = 12582912.f;  // 1.5 * 2^23: in a sum with it, a byte is the integer
    if (p_.weighted) {
#pragma unroll
      for (float& e : q) {
        e = fmaxf(-kLargest, fminf(kLargest, __fmul_rn(e, scale)));
        e = __fsub_rn(__fadd_rn(e, kRounds), kRounds);
      }
    } else {
#pragma unroll
      for (float& e : q) {
        e = e == 0.f ? 0.f : copysignf(1.f, e);
      }
    }
    float total = 0.f;
    float balance = 0.f;
    uint32_t bytes[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      total += fabsf(q[k]);
      balance += q[k];
      bytes[k] = __float_as_uint(__fmaf_rn(q[k], static_cast<float>(8 >> k % 4), kRounds));
    }
    uint32_t words[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* const of_half = bytes + 4 * half;
      const uint32_t word = __byte_perm(__byte_perm(of_half[0], of_half[1], 0x0040),
                                        __byte_perm(of_half[2], of_half[3], 0x0040), 0x5410);
      words[half] = transposed(word);
    }
    if (there) {
      const int word = (i - t * vectors) / 4;
      auto* const to = reinterpret_cast<uint32_t*>(votes_ + t * vote_stride_ + word * 32);
      to[b_.lane % 4] = words[0];
      to[4 + b_.lane % 4] = words[1];
    }
    const unsigned half = 0xffffu << b_.lane / 16 * 16;
    const int all_votes = __reduce_add_sync(half, static_cast<int>(total));
    const int all_balance = __reduce_add_sync(half, static_cast<int>(balance));
    if (there && b_.lane % 16 == 0) {
      atomicAdd(&shared_.total[t], all_votes);
      atomicAdd(&shared_.balance[t], all_balance);
    }
  }

  // Of four lanes with four bytes each: byte i of lane j becomes byte j of lane i.
  __device__ uint32_t transposed(uint32_t word) const {
    const uint32_t next = __shfl_xor_sync(~0u, word, 1);
    word = __byte_perm(word, next, b_.lane % 2 == 0 ? 0x6240 : 0x3715);
    const uint32_t other = __shfl_xor_sync(~0u, word, 2);
    return __byte_perm(word, other, b_.lane % 4 < 2 ? 0x5410 : 0x3276);
  }

  // q of the words of a lane: of each word, four columns 8 apart at a time.
  __device__ void load_votes(uint4 (&q)[8], int segment) const {
    const int8_t* const from = votes_ + (b_.group < p_.shape.tokens ? b_.group : 0) * vote_stride_ +
                               segment * 512 + b_.quad * 128;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = *reinterpret_cast<const uint4*>(from + i * 16);
    }
  }

  __device__ void count(int unit, int segment, const uint4 (&q)[8]) const {
    const int words = p_.shape.words();
    const int row = unit * kUnit + b_.group;
    const int neuron = b_.first_unit * kUnit + row;
    const int word = segment * 16 + b_.quad * 4;
    const uint32_t* const from =
        (unit < p_.at.resident ? signs_ + row * words : sign_row(neuron)) + word;
    const bool there = word < words;
    const vote_products::SignPiece signs{
        .low = there && neuron < p_.shape.neurons ? *reinterpret_cast<const uint4*>(from) : uint4{},
        .high = there && neuron + 8 < p_.shape.neurons
                    ? *reinterpret_cast<const uint4*>(from + 8 * words)
                    : uint4{}};
    vote_products::VoteSums sums[1];
    vote_products::add_segment(
        signs, [&](int, int i, int nibble) { return q[vote_products::kNibbles * i + nibble]; },
        sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 2 * b_.quad + i % 2;
      if (t < p_.shape.tokens) {
        atomicAdd(negative_ + (row + i / 2 * 8) * p_.shape.tokens + t, sums[0].of(i));
      }
    }
  }

  __device__ bool is_padding(int t) const { return p_.positions != nullptr && p_.positions[t] < 0; }
  __device__ int neurons_of(int unit) const {
    return min(kUnit, p_.shape.neurons - (b_.first_unit + unit) * kUnit);
  }
  __device__ bool is_active(int unit, int t) const {
    const int neuron = (b_.first_unit + unit) * kUnit + b_.lane;
    if (b_.lane >= kUnit || neuron >= p_.shape.neurons || is_padding(t)) {
      return false;
    }
    if (p_.gates != nullptr) {
      const float gate = f32_of(static_cast<const T*>(p_.gates)[t * p_.gates_stride + neuron]);
      return !(gate <= p_.threshold);  // NaN is not below
    }
    const int total = shared_.total[t];
    const int negative = (total - shared_.balance[t]) / 2 +
                         negative_[(unit * kUnit + b_.lane) * p_.shape.tokens + t];
    return !(__fmul_rn(p_.alpha, static_cast<float>(total - negative)) <
             static_cast<float>(negative));
  }

  __device__ void prefetch(int neuron) const {
    const uint32_t bytes = p_.shape.in * sizeof(T);
    const T* const up = static_cast<const T*>(p_.up) + neuron * p_.up_stride;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(up), "r"(bytes) : "memory");
    if (p_.gate != nullptr) {
      const T* const gate = static_cast<const T*>(p_.gate) + neuron * p_.gate_stride;
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(gate), "r"(bytes) : "memory");
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  int8_t* votes_;
  int* negative_;
  uint32_t* signs_;
  int vote_stride_;
};

}  // namespace sparsellm::fused
