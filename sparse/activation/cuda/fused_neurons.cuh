#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/copy_groups.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/mma.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"

// h of a block's share of the active neurons. The warps have the columns of x between them; eight
// neurons at a time, and up to eight tokens, are a product on the tensor cores. Their rows pass, 64
// columns at a time, through a ring of stages that each warp has for itself.
namespace sparsellm::fused {

template <class T, int kKinds, int kTiles>
class FusedNeurons {
 public:
  // Reads x, which no thread block may change before all have come to the end of run().
  __device__ FusedNeurons(const FusedParameters& p, const FusedBlock& b, FusedShared& shared,
                          uint8_t* memory)
      : p_(p),
        b_(b),
        shared_(shared),
        bits_(reinterpret_cast<const uint32_t*>(memory + p.at.bits)),
        parts_(reinterpret_cast<float*>(memory + p.at.parts)),
        ring_(shared_address(memory + p.at.ring) + b.warp * p.at.ring_bytes),
        steps_((p.shape.in - b.warp * kStepColumns + kColumnsOfStep - 1) / kColumnsOfStep) {
    // Kept in a register: the compiler would compute it anew for each step.
    asm volatile("" : "+r"(ring_));
    const T* const x =
        static_cast<const T*>(p.x) + b.group * p.x_stride + b.warp * kStepColumns + b.quad * 8;
#pragma unroll
    for (int i = 0; i < kSteps * 2; ++i) {
      x_[i] = b.group < p.shape.tokens && i / 2 < steps_
                  ? *reinterpret_cast<const uint4*>(x + i / 2 * kColumnsOfStep + i % 2 * 32)
                  : uint4{};
    }
  }

  // All threads. between(): when a warp needs its ring no more.
  template <class Between>
  __device__ void run(Between&& between) {
    const int groups = (shared_.count + 7) / 8;
    const int at_once = p_.shape.round();
    Rows current = rows_of(0);
    Rows next = rows_of(1);
#pragma unroll
    for (int step = 0; step < kSlots; ++step) {
      copy(current, step);
      commit_copies();
    }
    float* parts = parts_;
    float* next_parts = parts_ + p_.shape.parts();
    int group = 0;
#pragma unroll 1
    do {
      const int first = group;
      const int end = min(groups, first + at_once);
#pragma unroll 1
      for (; group < end; ++group) {
        float sums[2][4] = {};
#pragma unroll
        for (int step = 0; step < kPaddedSteps; ++step) {
          wait_for_copies<kSlots - 1>();
          __syncwarp();
          if (step < kSteps && step < steps_) {
            multiply_stage(sums, ring_ + step % kSlots * kStageBytes, x_[2 * step % (2 * kSteps)],
                           x_[(2 * step + 1) % (2 * kSteps)]);
          }
          __syncwarp();
          if (step + kSlots < kPaddedSteps) {
            copy(current, step + kSlots);
          } else {
            copy(next, step + kSlots - kPaddedSteps);
          }
          commit_copies();
        }
        current = next;
        next = rows_of(group + 2);
        leave(sums, parts, group - first);
      }
      if (end == groups) {
        between();
      }
      __syncthreads();
      finish(parts, first * 8, min(shared_.count, end * 8) - first * 8);
      float* const finished = parts;  // read until the next barrier, and written after it
      parts = next_parts;
      next_parts = finished;
    } while (group < groups);
  }

 private:
  static constexpr FusedShape kShape{.kinds = kKinds, .tiles = kTiles};
  static constexpr int kSteps = kShape.most_steps();
  static constexpr int kSlots = kShape.neuron_slots();
  static constexpr int kPaddedSteps = (kSteps + kSlots - 1) / kSlots * kSlots;
  static constexpr int kPitch = kStepColumns * 2 + 16;  // bytes; eight rows in different banks
  static constexpr int kStageBytes = kKinds * 8 * kPitch;
  // Of all warps, side by side: what is read at a time of a row is in one place of the memory.
  static constexpr int kColumnsOfStep = kStepColumns * kWarpsOfBlock;

  // What a lane copies of the rows of a group of eight neurons: 16 bytes at each step, of two of
  // them; null where there is no neuron. Its slots keep what was there before, and nobody reads its
  // sums.
  struct Rows {
    const T* of[2][kKinds];
  };
  __device__ Rows rows_of(int group) const {
    Rows rows;
    const int column = b_.warp * kStepColumns + b_.lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = group * 8 + i * 4 + b_.lane / 8;
      const bool there = n < shared_.count;
      const uint32_t neuron = there ? shared_.list[n] : 0;
      rows.of[i][kKinds - 1] =
          there ? weight_row<T>(p_.up, neuron, p_.up_stride) + column : nullptr;
      if constexpr (kKinds == 2) {
        rows.of[i][0] = there ? weight_row<T>(p_.gate, neuron, p_.gate_stride) + column : nullptr;
      }
    }
    return rows;
  }
  // `step` is known at compile time, and so is its slot.
  __device__ void copy(const Rows& rows, int step) const {
    if (step >= steps_) {
      return;
    }
    const uint32_t to =
        ring_ + step % kSlots * kStageBytes + b_.lane / 8 * kPitch + b_.lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (rows.of[i][0] != nullptr) {
#pragma unroll
        for (int kind = 0; kind < kKinds; ++kind) {
          copy16_once(to + (kind * 8 + i * 4) * kPitch, rows.of[i][kind] + step * kColumnsOfStep,
                      16);
        }
      }
    }
  }

  // The first eight rows of the product are those of the gate, if there is one.
  __device__ void multiply_stage(float (&sums)[2][4], uint32_t at, const uint4& x0,
                                 const uint4& x1) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4& x = half == 0 ? x0 : x1;
      const uint32_t from = at + b_.group * kPitch + half * 64 + b_.quad * 16;
      const uint4 low = load_shared16(from);
      const uint4 high = kKinds == 2 ? load_shared16(from + 8 * kPitch) : uint4{};
      mma<T>(sums[0], {low.x, high.x, low.y, high.y}, x.x, x.y);
      mma<T>(sums[1], {low.z, high.z, low.w, high.w}, x.z, x.w);
    }
  }

  __device__ void leave(const float (&sums)[2][4], float* parts, int group) const {
    const int tokens = p_.shape.tokens;
#pragma unroll
    for (int i = 0; i < 2 * kKinds; ++i) {
      const int t = 2 * b_.quad + i % 2;
      if (t < tokens) {
        parts[(((group * kKinds + i / 2) * kWarpsOfBlock + b_.warp) * 8 + b_.group) * tokens + t] =
            sums[0][i] + sums[1][i];
      }
    }
  }

  // Eight threads for a neuron and a token.
  __device__ void finish(const float* parts, int first, int neurons) const {
    constexpr int kParts = 8;
    const int tokens = p_.shape.tokens;
    const int shift = p_.shape.item_shift();  // 1 << shift items of a neuron
    uint32_t active = 0;
    const int all = ((neurons << shift) * kParts + kWarp - 1) / kWarp * kWarp;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += kThreads) {
      const int part = i % kParts;
      const int n = i / kParts >> shift;
      const int t = i / kParts & ((1 << shift) - 1);
      const bool there = n < neurons && t < tokens;
      float sums[kKinds] = {};
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        if (there) {
          const float* const from =
              parts + ((n / 8 * kKinds + kind) * kWarpsOfBlock * 8 + n % 8) * tokens + t;
          sums[kind] = from[part * 8 * tokens] + from[(part + kParts) * 8 * tokens];
        }
#pragma unroll
        for (int d = 1; d < kParts; d *= 2) {
          sums[kind] += __shfl_xor_sync(~0u, sums[kind], d);
        }
      }
      const uint32_t h = there && part == 0 ? h_of(first + n, t, sums) : 0;
      if (p_.counters != nullptr) {
        active += is_zero(h) ? 0 : 1;
      }
      const uint32_t next = tokens == 1 ? 0 : __shfl_down_sync(~0u, h, kParts);
      if (n < neurons && part == 0 && t % 2 == 0) {  // of tokens that are not there, too
        tell(first + n, t / 2, h | next << 16);
      }
    }
    if (p_.counters != nullptr) {
      active = __reduce_add_sync(~0u, active);
      if (b_.lane == 0 && active != 0) {
        atomicAdd(&shared_.active, active);
      }
    }
  }

  __device__ uint16_t h_of(int place, int t, const float (&sums)[kKinds]) const {
    const int neuron = shared_.list[place];
    const uint32_t bits = bits_[t / 2 * b_.units + neuron / kUnit];
    if ((bits >> (t % 2 * kUnit + neuron % kUnit) & 1) == 0) {
      return 0;
    }
    float up = sums[kKinds - 1];
    if (p_.up_bias != nullptr) {
      up += f32_of(static_cast<const T*>(p_.up_bias)[neuron]);
    }
    float gate = sums[0];
    if (kKinds == 2 && p_.gate_bias != nullptr) {
      gate += f32_of(static_cast<const T*>(p_.gate_bias)[neuron]);
    }
    if (kKinds == 1) {
      gate = p_.gates == nullptr
                 ? up
                 : f32_of(static_cast<const T*>(p_.gates)[t * p_.gates_stride + neuron]);
    }
    const bool is_gated = kKinds == 2 || p_.gates != nullptr;
    if (is_gated) {
      up = up < p_.least_up ? p_.least_up : up;
    }
    const float h = gate <= p_.threshold ? 0.f : is_gated ? gate * up : up;  // NaN is not below
    const T value = from_f32<T>(h);
    return *reinterpret_cast<const uint16_t*>(&value);
  }

  // Of bits of T: +0 or -0.
  static __device__ bool is_zero(uint32_t h) { return (h & 0x7fff) == 0; }

  // All blocks h of two tokens.
  __device__ void tell(int place, int pair, uint32_t h) const {
    const int64_t at = p_.whole_units ? shared_.list[place] : shared_.share_begin + place;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p_.h + at * p_.shape.h_words() + pair),
                 "l"(shared_.generation << 32 | h)
                 : "memory");
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  const uint32_t* bits_;
  float* parts_;
  uint32_t ring_;
  int steps_;            // of this warp
  uint4 x_[kSteps * 2];  // of each step and half of one: token `group`, eight columns
};

}  // namespace sparsellm::fused
