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
        x_memory_(reinterpret_cast<T*>(memory)),
        vote_stride_(p.shape.segments() * 512) {}

  // What does not depend on x, before the kernels before have ended.
  __device__ void begin() const {
    if (threadIdx.x == 0) {
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
    if (threadIdx.x < kMostUnits) {
      shared_.counted[threadIdx.x] = 0;
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
    constexpr int kAtOnce = 4;  // loads that are waited for together
#pragma unroll 1
    for (int first = threadIdx.x; first < up_to(all, kThreads); first += kAtOnce * kThreads) {
      uint4 values[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * kThreads;
        const int t = i / vectors;
        values[k] =
            i < all ? *reinterpret_cast<const uint4*>(x_of(t) + (i - t * vectors) * 8) : uint4{};
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * kThreads;
        const float sum = sum_of_squares(values[k]);
        if (i < all) {
          const int t = i / vectors;
          const int v = i - t * vectors;
          if (p_.at.keeps_x) {
            *reinterpret_cast<uint4*>(x_memory_ + int64_t{t} * p_.shape.in + v * 8) = values[k];
          }
          if (b_.lane % 16 == 0) {
            shared_.squares[t][v / 16] = sum;
          }
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
#pragma unroll 1
    for (int i = threadIdx.x; i < up_to(all, kThreads); i += kThreads) {
      count_weights(i, vectors, i < all);
    }
  }

  // By the first kVoters warps; an item is 16 neurons and 512 columns.
  __device__ void count() const {
    barrier_wait(shared_address(&shared_.signs_there), 0);
    const int segments = p_.shape.segments();
    int unit = 0;
    int segment = b_.warp;
#pragma unroll 1
    while (true) {
#pragma unroll 1
      for (; segment >= segments; segment -= segments) {
        ++unit;
      }
      if (unit >= b_.own_units) {
        return;
      }
      count(unit, segment);
      __syncwarp();
      if (b_.lane == 0) {
        asm volatile(
            "red.release.cta.shared.add.u32 [%0], 1;" ::"r"(shared_address(shared_.counted + unit))
            : "memory");
      }
      segment += kVoters;
    }
  }

  // By the other warps, as units are counted; active rows of gate and up are fetched into the L2.
  __device__ void publish(uint64_t generation) const {
#pragma unroll 1
    for (int unit = b_.warp - kVoters; unit < b_.own_units; unit += kPublishers) {
      uint32_t counted = 0;
      do {
        asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
                     : "=r"(counted)
                     : "r"(shared_address(shared_.counted + unit))
                     : "memory");
      } while (counted != static_cast<uint32_t>(p_.shape.segments()));
      uint32_t any = 0;
#pragma unroll 1
      for (int t = 0; t < p_.shape.tokens; ++t) {
        const uint32_t bits = __ballot_sync(~0u, is_active(unit, t));
        any |= bits;
        if (b_.lane == 0) {
          asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p_.tagged + 1 + t * b_.units +
                                                                   b_.first_unit + unit),
                       "l"(generation << kUnit | bits)
                       : "memory");
        }
      }
#pragma unroll 1
      for (; any != 0; any &= any - 1) {
        prefetch((b_.first_unit + unit) * kUnit + __ffs(any) - 1);
      }
    }
  }

 private:
  __device__ const T* x_of(int t) const {
    return static_cast<const T*>(p_.x) + int64_t{t} * p_.x_stride;
  }
  __device__ const uint32_t* sign_row(int neuron) const {
    return p_.signs + int64_t{neuron} * p_.shape.words();
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

  // Of vector i of all tokens'; by whole warps.
  __device__ void count_weights(int i, int vectors, bool there) const {
    int total = 0;
    int balance = 0;
    const int t = i / vectors;
    if (there) {
      const int v = i - t * vectors;
      const float scale = shared_.scales[t];
      float x[8];
      const T* const row = p_.at.keeps_x ? x_memory_ + int64_t{t} * p_.shape.in : x_of(t);
      to_f32(*reinterpret_cast<const uint4*>(row + v * 8), x);
      const int word = v / 4;
      int8_t* const to =
          votes_ + t * vote_stride_ + word / 16 * 512 + word % 4 * 128 + word % 16 / 4 * 16 + v % 4;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        int q = 0;
        if (p_.weighted) {
          q = max(-15, min(15, __float2int_rn(__fmul_rn(x[k], scale))));
        } else if (scale > 0.f) {
          q = (x[k] > 0.f) - (x[k] < 0.f);
        }
        total += abs(q);
        balance += q;
        // A bit of a nibble is worth its place: with these factors all are worth 8.
        to[k / 4 * 64 + k % 4 * 4] = static_cast<int8_t>(q << (3 - k % 4));
      }
    }
    const unsigned half = 0xffffu << b_.lane / 16 * 16;
    total = __reduce_add_sync(half, total);
    balance = __reduce_add_sync(half, balance);
    if (there && b_.lane % 16 == 0) {
      atomicAdd(&shared_.total[t], total);
      atomicAdd(&shared_.balance[t], balance);
    }
  }

  __device__ void count(int unit, int segment) const {
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
    const int8_t* const q = votes_ + (b_.group < p_.shape.tokens ? b_.group * vote_stride_ : 0) +
                            segment * 512 + b_.quad * 16;
    vote_products::VoteSums sums[1];
    vote_products::add_segment(
        signs,
        [&](int, int i, int nibble) {
          return *reinterpret_cast<const uint4*>(q + i * 128 + nibble * 64);
        },
        sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 2 * b_.quad + i % 2;
      if (t < p_.shape.tokens) {
        atomicAdd(negative_ + (row + i / 2 * 8) * p_.shape.tokens + t, sums[0].of(i));
      }
    }
  }

  __device__ bool is_active(int unit, int t) const {
    const int neuron = (b_.first_unit + unit) * kUnit + b_.lane;
    if (b_.lane >= kUnit || neuron >= p_.shape.neurons ||
        (p_.positions != nullptr && p_.positions[t] < 0)) {
      return false;
    }
    const int total = shared_.total[t];
    const int negative = (total - shared_.balance[t]) / 2 +
                         negative_[(unit * kUnit + b_.lane) * p_.shape.tokens + t];
    return !(__fmul_rn(p_.alpha, static_cast<float>(total - negative)) <
             static_cast<float>(negative));
  }

  __device__ void prefetch(int neuron) const {
    const T* const gate = static_cast<const T*>(p_.gate) + neuron * p_.gate_stride;
    const T* const up = static_cast<const T*>(p_.up) + neuron * p_.up_stride;
    constexpr int kLine = 128 / sizeof(T);
#pragma unroll 1
    for (int c = b_.lane * kLine; c < p_.shape.in; c += kWarp * kLine) {
      if (p_.gate != nullptr) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(gate + c));
      }
      asm volatile("prefetch.global.L2 [%0];" ::"l"(up + c));
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  int8_t* votes_;
  int* negative_;
  uint32_t* signs_;
  T* x_memory_;
  int vote_stride_;
};

}  // namespace sparsellm::fused
