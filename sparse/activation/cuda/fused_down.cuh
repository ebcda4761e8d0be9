#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/copy_groups.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/mma.cuh"
#include "sparse/activation/cuda/fused_list.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"

// y = h * rows of down, of the neurons of a half and the columns of a pair of blocks: warps have
// equal ranges of units, whose active rows pass through a ring of stages of their own.
namespace sparsellm::fused {

template <class T, int kTiles>
class FusedDown {
 public:
  __device__ FusedDown(const FusedParameters& p, const FusedBlock& b, const FusedShared& shared,
                       const FusedList& list, uint8_t* memory)
      : p_(p),
        b_(b),
        first_column_(b.block / 2 * kColumns),
        first_(list.begin_of(b.units_of_half * b.warp / kWarpsOfBlock)),
        count_(list.begin_of(b.units_of_half * (b.warp + 1) / kWarpsOfBlock) - first_),
        stages_((count_ + kRowsOfStage - 1) / kRowsOfStage),
        first_place_(shared.half_start + first_),
        word_shift_(p.shape.h_words() / 2),
        tag_(static_cast<uint32_t>(shared.generation)),
        entries_(list.entries() + first_),
        ring_(shared_address(memory + p.at.ring) + b.warp * p.at.ring_bytes),
        sums_(reinterpret_cast<float*>(memory + p.at.parts)),
        exchange_(reinterpret_cast<float*>(memory + p.at.exchange)) {}

  // The first rows, which need not wait for h.
  __device__ void begin() const {
#pragma unroll 1
    for (int stage = 0; stage < p_.at.down_stages; ++stage) {
      copy_rows(stage, stage);
      commit_copies();
    }
  }

  // By all threads.
  __device__ void run() const {
    constexpr int kAtOnce = 4;
    const int first_stages = min(p_.at.down_stages, stages_);
#pragma unroll 1
    for (int stage = 0; stage < first_stages; stage += kAtOnce) {
      Words<kAtOnce> words;
      read_h(words, stage);
      keep_h(words, stage, stage, first_stages);
    }
    float y[kTiles][4] = {};
    int slot = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages_; ++stage) {
      const int next = stage + p_.at.down_stages;
      Words<1> words;
      read_h(words, next);
      wait_for_oldest_copies(p_.at.down_stages);
      __syncwarp();
      multiply(y, ring_ + slot * kStageBytes);
      __syncwarp();
      copy_rows(next, slot);
      commit_copies();
      keep_h(words, next, slot, stages_);
      slot = slot + 1 == p_.at.down_stages ? 0 : slot + 1;
    }
    wait_for_copies<0>();
    add_up(y);
  }

 private:
  static constexpr int kColumns = kTiles * 8;
  static constexpr int kPitch = kColumns * 2 + 16;  // bytes; eight rows in different banks
  static constexpr int kStageBytes = kRowsOfStage * (kPitch + kMostTokens * 2);
  static constexpr int kVectors = kRowsOfStage * kTiles;

  __device__ int neuron_of(int entry) const {
    return b_.first_of_half * kUnit + (entries_[entry] & ~kIdle);
  }

  __device__ void copy_rows(int stage, int slot) const {
    if (stage >= stages_) {
      return;
    }
    const uint32_t to = ring_ + slot * kStageBytes;
#pragma unroll
    for (int i = 0; i < (kVectors + kWarp - 1) / kWarp; ++i) {
      const int vector = i * kWarp + b_.lane;
      const int row = vector / kTiles;
      const int column = vector % kTiles * 8;
      const int entry = stage * kRowsOfStage + row;
      const bool there =
          entry < count_ && (entries_[entry] & kIdle) == 0 && first_column_ + column < p_.shape.out;
      const T* const from =
          static_cast<const T*>(p_.down) +
          (there ? neuron_of(entry) * p_.down_stride + first_column_ + column : 0);
      if (vector < kVectors) {
        copy16(to + row * kPitch + column * 2, from, there ? 16 : 0);
      }
    }
  }
  // h of kStages stages: a stage's words are those of 16 entries, at most 64.
  template <int kStages>
  struct Words {
    uint64_t of_lane[kStages][2];
  };
  // Word i of a stage. Of an entry that is not there or idle: zeros, as if they had come.
  __device__ uint64_t h_word(int stage, int i) const {
    const int entry = stage * kRowsOfStage + (i >> word_shift_);
    uint64_t word = uint64_t{tag_} << 32;
    if (entry < count_ && (entries_[entry] & kIdle) == 0) {
      const int64_t place = p_.whole_units ? neuron_of(entry) : first_place_ + entry;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                   : "=l"(word)
                   : "l"(p_.h + (place << word_shift_) + (i & ((1 << word_shift_) - 1)))
                   : "memory");
    }
    return word;
  }
  template <int kStages>
  __device__ void read_h(Words<kStages>& words, int first_stage) const {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        words.of_lane[s][k] = h_word(first_stage + s, k * kWarp + b_.lane);
      }
    }
  }
  // Waits for them, and leaves them in their stages, of which the first is in `slot`.
  template <int kStages>
  __device__ void keep_h(Words<kStages>& words, int first_stage, int slot, int end_stage) const {
    bool waits = true;
#pragma unroll 1
    while (true) {
      waits = false;
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        waits |= words.of_lane[s][0] >> 32 != tag_ || words.of_lane[s][1] >> 32 != tag_;
      }
      if (!waits) {
        break;
      }
      read_h(words, first_stage);
    }
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const uint32_t to = ring_ + (slot + s) * kStageBytes + kRowsOfStage * kPitch;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = k * kWarp + b_.lane;
        const int entry = i >> word_shift_;
        const int word = i & ((1 << word_shift_) - 1);
        if (first_stage + s < end_stage && entry < kRowsOfStage) {
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + entry * kMostTokens * 2 + word * 4),
                       "r"(static_cast<uint32_t>(words.of_lane[s][k]))
                       : "memory");
        }
      }
    }
  }

  __device__ void multiply(float (&y)[kTiles][4], uint32_t at) const {
    uint32_t a[4] = {};  // h, rows are tokens
    {
      const uint32_t from = at + kRowsOfStage * kPitch + b_.group * 2;
      uint16_t h[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int neuron = 2 * b_.quad + i % 2 + i / 2 * 8;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h[i]) : "r"(from + neuron * kMostTokens * 2));
      }
      a[0] = h[0] | static_cast<uint32_t>(h[1]) << 16;
      a[2] = h[2] | static_cast<uint32_t>(h[3]) << 16;
    }
    const uint32_t rows = at + b_.lane % 16 * kPitch + b_.lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < kTiles; i += 2) {
      uint32_t w[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(rows + i * 16)
                   : "memory");
      mma<T>(y[i], a, w[0], w[1]);
      mma<T>(y[i + 1], a, w[2], w[3]);
    }
  }

  // The sums of the warps, then of the two blocks, in order.
  __device__ void add_up(const float (&y)[kTiles][4]) const {
    constexpr int kSumPitch = kColumns + 4;
    const int tokens = p_.shape.tokens;
    __syncthreads();  // no warp reads its ring any more
    if (b_.group < tokens) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        *reinterpret_cast<float2*>(sums_ + (b_.warp * tokens + b_.group) * kSumPitch + i * 8 +
                                   2 * b_.quad) = float2{y[i][0], y[i][1]};
      }
    }
    __syncthreads();
    cluster_wait();  // the other block has started
    constexpr int kParts = 8;
    float* const own = sums_ + kWarpsOfBlock * tokens * kSumPitch;
    const int items = tokens * kColumns;
#pragma unroll 1
    for (int i = threadIdx.x; i < items * kParts; i += kThreads) {  // whole warps
      const int part = i % kParts;
      const int item = i / kParts;
      const int t = item / kColumns;
      const float* const from = sums_ + t * kSumPitch + item % kColumns;
      float sum = from[part * tokens * kSumPitch] + from[(part + kParts) * tokens * kSumPitch];
#pragma unroll
      for (int d = 1; d < kParts; d *= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
      }
      if (part == 0 && b_.half == 0) {
        own[item] = sum;
      } else if (part == 0) {
        asm volatile(
            "{\n.reg .b32 a;\nmapa.shared::cluster.u32 a, %0, 0;\n"
            "st.shared::cluster.f32 [a], %1;\n}" ::"r"(shared_address(exchange_ + item)),
            "f"(sum)
            : "memory");
      }
    }
    cluster_arrive();
    cluster_wait();
    if (b_.half == 0) {
#pragma unroll 1
      for (int item = threadIdx.x; item < items; item += kThreads) {
        const int t = item / kColumns;
        const int column = first_column_ + item % kColumns;
        if (column < p_.shape.out) {
          float sum = own[item] + exchange_[item];
          if (p_.down_bias != nullptr) {
            sum += f32_of(static_cast<const T*>(p_.down_bias)[column]);
          }
          static_cast<T*>(p_.y)[t * p_.y_stride + column] = from_f32<T>(sum);
        }
      }
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  int first_column_;
  int first_;
  int count_;   // entries of this warp
  int stages_;  // of 16 of them
  int first_place_;
  int word_shift_;  // an entry has 1 << word_shift_ words of h
  uint32_t tag_;
  const uint16_t* entries_;
  uint32_t ring_;
  float* sums_;
  float* exchange_;
};

}  // namespace sparsellm::fused
