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

template <class T, int kKinds>
class FusedNeurons {
 public:
  __device__ FusedNeurons(const FusedParameters& p, const FusedBlock& b, const FusedShared& shared,
                          uint8_t* memory)
      : p_(p),
        b_(b),
        shared_(shared),
        parts_(reinterpret_cast<float*>(memory + p.at.parts)),
        x_(p.at.keeps_x ? reinterpret_cast<const T*>(memory) : static_cast<const T*>(p.x)),
        x_stride_(p.at.keeps_x ? p.shape.in : p.x_stride),
        ring_(shared_address(memory + p.at.ring) + b.warp * p.at.ring_bytes),
        steps_((p.shape.in / kStepColumns + kWarpsOfBlock - 1) / kWarpsOfBlock),
        first_column_(b.warp * kStepColumns) {}

  // All threads. between(): when a warp needs its ring no more.
  template <class Between>
  __device__ void run(Between&& between) {
    const int count = shared_.count;
    const int at_once = p_.at.round * 8;
    int first = 0;
#pragma unroll 1
    do {
      const int neurons = min(count - first, at_once);
      multiply(first, neurons);
      if (first + at_once >= count) {
        between();
      }
      __syncthreads();
      finish(first, neurons);
      __syncthreads();
      first += at_once;
    } while (first < count);
  }

 private:
  static constexpr int kPitch = kStepColumns * 2 + 16;  // bytes; eight rows in different banks
  static constexpr int kStageBytes = kKinds * 8 * kPitch;
  // Of all warps, side by side: what is read at a time of a row is in one place of the memory.
  static constexpr int kColumnsOfStep = kStepColumns * kWarpsOfBlock;

  // What is copied next: the columns of eight neurons step by step, then those of the next eight. A
  // lane copies 16 bytes of two of the neurons.
  struct Cursor {
    int group = -1;
    int step = 0;
    const T* rows[2][kKinds];
    bool there[2];
  };
  __device__ void advance(Cursor& cursor, int first, int neurons) const {
    if (cursor.group >= 0 && ++cursor.step < steps_) {
      return;
    }
    cursor.step = 0;
    ++cursor.group;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = cursor.group * 8 + i * 4 + b_.lane / 8;
      cursor.there[i] = n < neurons;
      const int64_t neuron = n < neurons ? shared_.list[first + n] : 0;
      cursor.rows[i][0] = static_cast<const T*>(p_.gate) + neuron * p_.gate_stride;
      cursor.rows[i][kKinds - 1] = static_cast<const T*>(p_.up) + neuron * p_.up_stride;
    }
  }
  __device__ void copy(const Cursor& cursor, int slot) const {
    const int column = first_column_ + cursor.step * kColumnsOfStep + b_.lane % 8 * 8;
    const uint32_t to = ring_ + slot * kStageBytes + b_.lane / 8 * kPitch + b_.lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = cursor.there[i] && column < p_.shape.in;
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        copy16(to + (kind * 8 + i * 4) * kPitch, there ? cursor.rows[i][kind] + column : p_.up,
               there ? 16 : 0);
      }
    }
  }

  __device__ void multiply(int first, int neurons) {
    const int groups = (neurons + 7) / 8;
    const int all = groups * steps_;
    Cursor cursor;
#pragma unroll 1
    for (int stage = 0; stage < p_.at.neuron_stages; ++stage) {
      if (stage < all) {
        advance(cursor, first, neurons);
        copy(cursor, stage);
      }
      commit_copies();
    }
    float sums[kKinds][2][4] = {};
    int slot = 0;
    int step = 0;
    int group = 0;
#pragma unroll 1
    for (int stage = 0; stage < all; ++stage) {
      wait_for_oldest_copies(p_.at.neuron_stages);
      __syncwarp();
      multiply_stage(sums, ring_ + slot * kStageBytes, step);
      __syncwarp();
      if (stage + p_.at.neuron_stages < all) {
        advance(cursor, first, neurons);
        copy(cursor, slot);
      }
      commit_copies();
      slot = slot + 1 == p_.at.neuron_stages ? 0 : slot + 1;
      if (++step == steps_) {
        step = 0;
        leave(sums, group++);
      }
    }
  }

  __device__ void multiply_stage(float (&sums)[kKinds][2][4], uint32_t at, int step) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = first_column_ + step * kColumnsOfStep + half * 32 + b_.quad * 8;
      const uint4 x = b_.group < p_.shape.tokens && column < p_.shape.in
                          ? *reinterpret_cast<const uint4*>(x_ + b_.group * x_stride_ + column)
                          : uint4{};
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        uint4 w;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "r"(at + (kind * 8 + b_.group) * kPitch + half * 64 + b_.quad * 16)
                     : "memory");
        mma<T>(sums[kind][0], {x.x, 0, x.y, 0}, w.x, w.y);
        mma<T>(sums[kind][1], {x.z, 0, x.w, 0}, w.z, w.w);
      }
    }
  }

  __device__ void leave(float (&sums)[kKinds][2][4], int group) const {
    const int tokens = p_.shape.tokens;
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind) {
      float* const to = parts_ + ((group * kKinds + kind) * kWarpsOfBlock + b_.warp) * 8 * tokens;
      if (b_.group < tokens) {
        to[2 * b_.quad * tokens + b_.group] = sums[kind][0][0] + sums[kind][1][0];
        to[(2 * b_.quad + 1) * tokens + b_.group] = sums[kind][0][1] + sums[kind][1][1];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[kind][0][i] = 0.f;
        sums[kind][1][i] = 0.f;
      }
    }
  }

  // Eight threads for a neuron and a token.
  __device__ void finish(int first, int neurons) const {
    constexpr int kParts = 8;
    const int tokens = p_.shape.tokens;
    const int all = (neurons * tokens * kParts + kWarp - 1) / kWarp * kWarp;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += kThreads) {
      const int part = i % kParts;
      const int item = i / kParts;
      const int n = item / tokens;
      const int t = item - n * tokens;
      float sums[kKinds] = {};
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        if (n < neurons) {
          const float* const from =
              parts_ + ((n / 8 * kKinds + kind) * kWarpsOfBlock * 8 + n % 8) * tokens + t;
          sums[kind] = from[part * 8 * tokens] + from[(part + kParts) * 8 * tokens];
        }
#pragma unroll
        for (int d = 1; d < kParts; d *= 2) {
          sums[kind] += __shfl_xor_sync(~0u, sums[kind], d);
        }
      }
      if (part == 0 && n < neurons) {
        store(first + n, t, sums);
      }
    }
  }

  __device__ void store(int place, int t, const float (&sums)[kKinds]) const {
    const int neuron = shared_.list[place];
    float up = sums[kKinds - 1];
    if (p_.up_bias != nullptr) {
      up += f32_of(static_cast<const T*>(p_.up_bias)[neuron]);
    }
    float h = 0.f;
    if constexpr (kKinds == 2) {
      float gate = sums[0];
      if (p_.gate_bias != nullptr) {
        gate += f32_of(static_cast<const T*>(p_.gate_bias)[neuron]);
      }
      h = gate <= p_.threshold ? 0.f : gate * up;  // NaN is not below
    } else {
      h = up <= p_.threshold ? 0.f : up;
    }
    const T value = from_f32<T>(shared_.flags[place] >> t & 1 ? h : 0.f);
    static_cast<T*>(p_.h)[int64_t{neuron} * kMostTokens + t] = value;
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  const FusedShared& shared_;
  float* parts_;
  const T* x_;
  int64_t x_stride_;
  uint32_t ring_;
  int steps_;  // of a warp, of 64 columns
  int first_column_;
};

}  // namespace sparsellm::fused
