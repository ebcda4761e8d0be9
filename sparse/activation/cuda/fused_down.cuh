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
        first_(list.begin_of_warp(b.warp)),
        count_(list.begin_of_warp(b.warp + 1) - first_),
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
    const int of_stage = kRowsOfStage << word_shift_;  // words
    const int first_words = min(p_.at.down_stages, stages_) * of_stage;
#pragma unroll 1
    for (int first = 0; first < first_words; first += kWordsAtOnce) {
      keep_h(read_h(first, first_words), first, first_words, 0);
    }
    float y[kTiles][4] = {};
    int slot = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages_; ++stage) {
      const int next = stage + p_.at.down_stages;
      const int words_end = next < stages_ ? (next + 1) * of_stage : 0;
      const Words words = read_h(next * of_stage, words_end);
      wait_for_oldest_copies(p_.at.down_stages);
      __syncwarp();
      multiply(y, ring_ + slot * kStageBytes);
      __syncwarp();
      copy_rows(next, slot);
      commit_copies();
      keep_h(words, next * of_stage, words_end, slot - next);
      slot = slot + 1 == p_.at.down_stages ? 0 : slot + 1;
    }
    wait_for_copies<0>();
    add_up(y);
  }

 private:
  static constexpr int kColumns = kTiles * 8;
  static constexpr int kPitch = kColumns * 2 + 16;  // bytes; eight rows in different banks
  static constexpr int kStageBytes = kRowsOfStage * (kPitch + kMostTokens * 2);

  __device__ int neuron_of(int entry) const {
    return b_.first_of_half * kUnit + (entries_[entry] & ~kIdle);
  }

  // A lane copies 16 bytes of some rows, always of the same columns.
  __device__ void copy_rows(int stage, int slot) const {
    constexpr int kRows = kWarp / kTiles;  // at once
    const int row = b_.lane / kTiles;
    if (stage >= stages_ || row >= kRows) {
      return;
    }
    const int column = b_.lane % kTiles * 8;
    const uint32_t to = ring_ + slot * kStageBytes + row * kPitch + column * 2;
    const T* const from = static_cast<const T*>(p_.down) + first_column_ + column +
                          b_.first_of_half * kUnit * p_.down_stride;
    const uint16_t* const entries = entries_ + stage * kRowsOfStage + row;
    const int count =
        first_column_ + column < p_.shape.out ? count_ - stage * kRowsOfStage - row : 0;
#pragma unroll
    for (int i = 0; i < kRowsOfStage; i += kRows) {
      if (i + kRows > kRowsOfStage && i + row >= kRowsOfStage) {
        break;
      }
      const bool there = i < count && (entries[i] & kIdle) == 0;
      copy16(to + i * kPitch, there ? from + entries[i] * p_.down_stride : from, there ? 16 : 0);
    }
  }
  // Words of h of the entries one after the other, two of a lane: those of a stage are at most 64.
  static constexpr int kWordsAtOnce = 2 * kWarp;
  struct Words {
    uint64_t of_lane[2];
  };
  // [first, end). Of an entry that is not there or idle: zeros, as if they had come.
  __device__ Words read_h(int first, int end) const {
    Words words;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = first + k * kWarp + b_.lane;
      const int entry = i >> word_shift_;
      words.of_lane[k] = uint64_t{tag_} << 32;
      if (i < end && entry < count_ && (entries_[entry] & kIdle) == 0) {
        const int place = p_.whole_units ? neuron_of(entry) : first_place_ + entry;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                     : "=l"(words.of_lane[k])
                     : "l"(p_.h + (place << word_shift_) + (i & ((1 << word_shift_) - 1)))
                     : "memory");
      }
    }
    return words;
  }
  // Waits for them, and leaves them in their stages: stage i is in slot i + slots.
  __device__ void keep_h(Words words, int first, int end, int slots) const {
#pragma unroll 1
    while (words.of_lane[0] >> 32 != tag_ || words.of_lane[1] >> 32 != tag_) {
      words = read_h(first, end);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = first + k * kWarp + b_.lane;
      const int entry = i >> word_shift_;
      const int word = i & ((1 << word_shift_) - 1);
      if (i < end) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(
                         ring_ + (entry / kRowsOfStage + slots) * kStageBytes +
                         kRowsOfStage * kPitch + entry % kRowsOfStage * kMostTokens * 2 + word * 4),
                     "r"(static_cast<uint32_t>(words.of_lane[k]))
                     : "memory");
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
    float* const own = sums_ + kWarpsOfBlock * tokens * kSumPitch;
    const int items = tokens * kColumns;
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += kThreads) {
      const float* const from = sums_ + item / kColumns * kSumPitch + item % kColumns;
      float parts[4] = {};
#pragma unroll
      for (int w = 0; w < kWarpsOfBlock; ++w) {
        parts[w % 4] += from[w * tokens * kSumPitch];
      }
      const float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
      if (b_.half == 0) {
        own[item] = sum;
      } else {
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
