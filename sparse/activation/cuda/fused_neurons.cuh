#pragma once

#include <cstdint>

#include "kernels/device/cuda_types.cuh"
#include "kernels/device/mma.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"

// h of a block's share of the active neurons. The warps have the columns of x between them; eight
// neurons at a time, and up to eight tokens, are a product on the tensor cores, with loads of the
// next eight under way.
namespace sparsellm::fused {

// kLoads: of a row, of 32 columns each, under way.
template <class T, int kKinds, int kLoads>
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
        steps_((p.shape.in / 32 + kWarpsOfBlock - 1) / kWarpsOfBlock),
        first_step_(b.warp * steps_) {}

  // All threads. between(): after the last loads of the first round.
  template <class Between>
  __device__ void run(Between&& between) {
    const int count = shared_.count;
    const int at_once = p_.at.round * 8;
    int first = 0;
#pragma unroll 1
    do {
      const int neurons = min(count - first, at_once);
      multiply(first, neurons);
      if (first == 0) {
        between();
      }
      __syncthreads();
      finish(first, neurons);
      __syncthreads();
      first += at_once;
    } while (first < count);
  }

 private:
  // Rows of a group of eight neurons, of which a lane has one.
  struct Rows {
    const T* gate;
    const T* up;
    bool there;
  };
  __device__ Rows rows_of(int first, int neurons, int group) const {
    const int i = group * 8 + b_.group;
    const bool there = i < neurons;
    const int64_t neuron = there ? shared_.list[first + i] : 0;
    const int column = first_step_ * 32 + b_.quad * 8;
    return {static_cast<const T*>(p_.gate) + neuron * p_.gate_stride + column,
            static_cast<const T*>(p_.up) + neuron * p_.up_stride + column, there};
  }

  __device__ void load(uint4 (&w)[kKinds], const Rows& rows, int step) const {
    const bool there = rows.there && step < steps_ && (first_step_ + step) * 32 < p_.shape.in;
    if constexpr (kKinds == 2) {
      w[0] = there ? load_once(rows.gate + step * 32) : uint4{};
    }
    w[kKinds - 1] = there ? load_once(rows.up + step * 32) : uint4{};
  }

  __device__ void multiply(int first, int neurons) {
    const int groups = (neurons + 7) / 8;
    if (groups == 0) {
      return;
    }
    uint4 w[kLoads][kKinds];
    Rows rows = rows_of(first, neurons, 0);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      load(w[i], rows, i);
    }
    int next_group = 0;
    int next_step = 0;
    const auto advance = [&] {
      next_step += kLoads;
      if (next_step >= steps_) {
        next_step = 0;
        rows = rows_of(first, neurons, ++next_group);
      }
    };
    advance();
    float sums[kKinds][2][4] = {};
    int step = 0;
    int group = 0;
#pragma unroll 1
    while (group < groups) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int column = (first_step_ + step + i) * 32 + b_.quad * 8;
        const uint4 x = b_.group < p_.shape.tokens && step + i < steps_ && column < p_.shape.in
                            ? *reinterpret_cast<const uint4*>(x_ + b_.group * x_stride_ + column)
                            : uint4{};
#pragma unroll
        for (int kind = 0; kind < kKinds; ++kind) {
          mma<T>(sums[kind][0], {x.x, 0, x.y, 0}, w[i][kind].x, w[i][kind].y);
          mma<T>(sums[kind][1], {x.z, 0, x.w, 0}, w[i][kind].z, w[i][kind].w);
        }
        load(w[i], rows, next_step + i);
      }
      advance();
      step += kLoads;
      if (step >= steps_) {
        step = 0;
        leave(sums, group++);
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
  int steps_;  // of a warp, of 32 columns
  int first_step_;
};

}  // namespace sparsellm::fused
