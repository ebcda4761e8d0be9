#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"
#include "sparse/activation/cuda/fused_x.cuh"
#include "sparse/activation/cuda/vote_products.cuh"

// Counts the votes of a block's units and tells all blocks which of their neurons are active
// (sign_predictor.h). With q the signed weight of a vote, a neuron's negative votes are
//   (sum of |q| - sum of q) / 2 + sum of q where the sign of W is negative,
// and the last sum is a product on the tensor cores: of sign bits, a bit of a byte at a time, and
// q as bytes, up to eight tokens at once. Where a vote counts 1 and there are one or two tokens,
// negative votes are the bits in which the signs of W and x differ, of those where x is not zero.
namespace sparsellm::fused {

template <class T>
class FusedVotes {
 public:
  __device__ FusedVotes(const FusedParameters& p, const FusedBlock& b, FusedShared& shared,
                        uint8_t* memory)
      : p_(p),
        b_(b),
        shared_(shared),
        x_(p, b, shared, memory),
        negative_(reinterpret_cast<int*>(memory + p.at.negative)),
        signs_(reinterpret_cast<uint32_t*>(memory + p.at.signs)) {}

  // What does not depend on x, before the kernels before have ended.
  __device__ void begin() const {
    if (threadIdx.x == 0 && p_.gates == nullptr) {
      const uint32_t barrier = shared_address(&shared_.signs_there);
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
      shared_.voteless[threadIdx.x] = 0;
    }
    if (p_.weighted) {
      for (int i = threadIdx.x; i < kMostTokens * kMostSquares; i += kThreads) {
        shared_.squares[0][i] = 0.f;
      }
    }
  }

  // x becomes votes. All threads; a barrier has to follow.
  __device__ void read_x() const { x_.read(); }

  // By all warps.
  __device__ void count() const {
    barrier_wait(shared_address(&shared_.signs_there), 0);
    p_.counts_bits ? count_bits() : count_bytes();
  }

  // When all votes are counted: by all threads. active [tokens, neurons]: 1 or 0.
  __device__ void write(uint8_t* active, int64_t stride) const {
    const int first = b_.first_unit * kUnit;
    const int neurons = min(b_.own_units * kUnit, p_.shape.neurons - first);
#pragma unroll 1
    for (int t = 0; t < p_.shape.tokens; ++t) {
      for (int i = threadIdx.x; i < neurons; i += kThreads) {
        active[t * stride + first + i] = is_active(i, t) ? 1 : 0;
      }
    }
  }

  // When all votes are counted: by all warps. The first rows of active neurons are fetched into the
  // L2, where they will be by the time that all blocks know who multiplies them.
  __device__ void publish(uint64_t generation) const {
    uint32_t skipped = 0;
    const int words = b_.own_units * p_.shape.token_pairs();
#pragma unroll 1
    for (int word = b_.warp; word < words; word += kWarpsOfBlock) {
      const int pair = word / b_.own_units;
      const int unit = word - pair * b_.own_units;
      const int t = 2 * pair + b_.lane / kUnit;
      const bool is_token = t < p_.shape.tokens && !is_padding(t);
      const bool is_neuron = b_.lane % kUnit < neurons_of(unit);
      const bool active = is_token && is_neuron && is_active(unit * kUnit + b_.lane % kUnit, t);
      const uint32_t bits = __ballot_sync(~0u, active);
      if (b_.lane == 0) {
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p_.active + pair * b_.units +
                                                                 b_.first_unit + unit),
                     "l"(generation << 32 | bits)
                     : "memory");
      }
      skipped += is_token && is_neuron && !active ? 1 : 0;
      if (unit < p_.prefetched && b_.lane < kUnit && ((bits | bits >> kUnit) >> b_.lane & 1) != 0) {
        prefetch((b_.first_unit + unit) * kUnit + b_.lane);
      }
    }
    if (p_.counters != nullptr && p_.gates == nullptr) {
      skipped = __reduce_add_sync(~0u, skipped);
      if (b_.lane == 0) {
        atomicAdd(&shared_.skipped, skipped);
      }
    }
  }

 private:
  __device__ const uint32_t* sign_row(int neuron) const {
    return p_.signs + int64_t{neuron} * p_.shape.words();
  }

  // Of 16 neurons and 512 columns each: the warps have equal shares of them, those of the same
  // columns one after the other. load(segment) comes before count(segment, unit) of these.
  template <class Load, class Count>
  __device__ void for_items(Load&& load, Count&& count) const {
    const int items = p_.shape.segments() * b_.own_units;
    const int end = items * (b_.warp + 1) / kWarpsOfBlock;
    int item = items * b_.warp / kWarpsOfBlock;
#pragma unroll 1
    while (item < end) {
      const int segment = item / b_.own_units;
      const int first = segment * b_.own_units;
      const int end_unit = min(end - first, b_.own_units);
      load(segment);
#pragma unroll 1
      for (int unit = item - first; unit < end_unit; ++unit) {
        count(segment, unit);
      }
      item = first + end_unit;
    }
  }

  // Of neurons that are not there: anything.
  __device__ vote_products::SignPiece signs_of(int segment, int unit) const {
    const int words = p_.shape.words();
    const int row = unit * kUnit + b_.group;
    const int word = segment * 16 + b_.quad * 4;
    if (word >= words) {
      return {};
    }
    if (unit < p_.at.resident) {
      const uint32_t from = shared_address(signs_) + (row * words + word) * 4;
      return {load_shared16(from), load_shared16(from + 32 * words)};
    }
    const int neuron = b_.first_unit * kUnit + row;
    const int last = p_.shape.neurons - 1;
    return {*reinterpret_cast<const uint4*>(sign_row(min(neuron, last)) + word),
            *reinterpret_cast<const uint4*>(sign_row(min(neuron + 8, last)) + word)};
  }

  // negative_[unit * kUnit + group, token] += count, and of the neuron 8 further; if `mine`.
  __device__ void add(int unit, int token, bool mine, int count, int count_of_next) const {
    const int tokens = p_.shape.tokens;
    const uint32_t to =
        shared_address(negative_) + ((unit * kUnit + b_.group) * tokens + token) * 4;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %4, 0;\n@p red.shared.add.s32 [%0], %2;\n"
        "@p red.shared.add.s32 [%1], %3;\n}" ::"r"(to),
        "r"(to + 32 * tokens), "r"(count), "r"(count_of_next), "r"(static_cast<int>(mine))
        : "memory");
  }

  __device__ void count_bytes() const {
    uint4 q[8];  // of the words of a lane: of each word, four columns 8 apart at a time
    for_items(
        [&](int segment) {
          const int token = b_.group < p_.shape.tokens ? b_.group : 0;
          const uint32_t from = x_.bytes_at(token, segment) + b_.quad * 16;
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            q[i] = load_shared16(from + i * 64);
          }
        },
        [&](int segment, int unit) {
          vote_products::VoteSums sums[1];
          vote_products::add_segment(
              signs_of(segment, unit),
              [&](int, int i, int nibble) { return q[vote_products::kNibbles * i + nibble]; },
              sums);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int t = 2 * b_.quad + i;
            add(unit, t, t < p_.shape.tokens, sums[0].of(i), sums[0].of(i + 2));
          }
        });
  }

  // Each lane of four has a quarter of the words of a segment.
  __device__ void count_bits() const {
    uint4 negative[kMostCountedTokens];
    uint4 nonzero[kMostCountedTokens];
    for_items(
        [&](int segment) {
#pragma unroll
          for (int t = 0; t < kMostCountedTokens; ++t) {
            const bool there = t < p_.shape.tokens && segment * 16 + b_.quad * 4 < p_.shape.words();
            const uint32_t from = x_.bits_at(t) + segment * 64 + b_.quad * 16;
            negative[t] = there ? load_shared16(from) : uint4{};
            nonzero[t] = there ? load_shared16(from + x_.bits_stride()) : uint4{};
          }
        },
        [&](int segment, int unit) {
          const vote_products::SignPiece signs = signs_of(segment, unit);
#pragma unroll
          for (int t = 0; t < kMostCountedTokens; ++t) {
            if (t >= p_.shape.tokens) {
              break;
            }
            int both = differing(signs.low, negative[t], nonzero[t]) +
                       differing(signs.high, negative[t], nonzero[t]) * 65536;
            both += __shfl_xor_sync(~0u, both, 1);
            both += __shfl_xor_sync(~0u, both, 2);
            add(unit, t, b_.quad == t, both & 0xffff, both >> 16);
          }
        });
  }
  static __device__ int differing(const uint4& a, const uint4& b, const uint4& of) {
    return __popc((a.x ^ b.x) & of.x) + __popc((a.y ^ b.y) & of.y) + __popc((a.z ^ b.z) & of.z) +
           __popc((a.w ^ b.w) & of.w);
  }

  __device__ bool is_padding(int t) const { return p_.positions != nullptr && p_.positions[t] < 0; }
  __device__ int neurons_of(int unit) const {
    return min(kUnit, p_.shape.neurons - (b_.first_unit + unit) * kUnit);
  }
  // `place`: a neuron, from the first of this block on.
  __device__ bool is_active(int place, int t) const {
    if (p_.gates != nullptr) {
      const float gate = f32_of(
          static_cast<const T*>(p_.gates)[t * p_.gates_stride + b_.first_unit * kUnit + place]);
      return !(gate <= p_.threshold);  // NaN is not below
    }
    if (shared_.voteless[t] != 0) {
      return true;
    }
    const int total = shared_.total[t];
    const int of_x = p_.counts_bits ? 0 : (total - shared_.balance[t]) / 2;
    const int negative = of_x + negative_[place * p_.shape.tokens + t];
    return !(__fmul_rn(p_.alpha, static_cast<float>(total - negative)) <
             static_cast<float>(negative));
  }

  __device__ void prefetch(int neuron) const {
    const uint32_t bytes = p_.shape.in * sizeof(T);
    bulk_prefetch_once(weight_row<T>(p_.up, neuron, p_.up_stride), bytes);
    if (p_.gate != nullptr) {
      bulk_prefetch_once(weight_row<T>(p_.gate, neuron, p_.gate_stride), bytes);
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  FusedX<T> x_;
  int* negative_;
  uint32_t* signs_;
};

}  // namespace sparsellm::fused
