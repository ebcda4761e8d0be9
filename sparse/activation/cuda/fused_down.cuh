#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/copy_groups.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/mma.cuh"
#include "sparse/activation/cuda/fused_list.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"

// y = h * rows of down, of the neurons of a half and the columns of a pair of blocks: warps have
// equal ranges of the active neurons (or of units, where the list has whole ones), whose rows pass
// through a ring of stages of their own.
//
// With one or two tokens rows whose h turned out to be zero are not read ("actual sparsity",
// SparseInfer, section IV-B), but for those of the first ring of stages, which are under way before
// h is known. Entries are looked at 64 at a time, a ring ahead; those that are not zero move
// together, in their order, so that each stage but the last is full and as many bytes are under way
// as without zeros. Under Sums::batch_invariant every row is read: what is added in which order
// goes by numbers of neurons.
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
        is_whole_(!p.whole_units && first_column_ + kColumns <= p.shape.out),
        rows_(b.first_of_half * kUnit * p.down_stride + first_column_ * 2),
        first_place_(shared.half_start + first_),
        word_shift_(p.shape.h_words() / 2),
        tag_(static_cast<uint32_t>(shared.generation)),
        entries_(list.entries() + first_),
        ring_(shared_address(memory + p.at.ring) + b.warp * p.at.ring_bytes),
        sums_(reinterpret_cast<float*>(memory + p.at.parts)),
        exchange_(reinterpret_cast<float*>(memory + p.at.exchange)),
        exchange_there_(shared_address(&shared.exchange_there)) {}

  // The first rows, which need not wait for h.
  __device__ void begin() const {
#pragma unroll 1
    for (int stage = 0; stage < p_.at.down_stages; ++stage) {
      copy_rows(stage, stage, count_ - stage * kRowsOfStage);
      commit_copies();
    }
  }

  // By all threads.
  __device__ void run() const {
    const int ring = p_.at.down_stages;
    const int of_stage = kRowsOfStage << word_shift_;  // words
    const int all_stages = (count_ + kRowsOfStage - 1) / kRowsOfStage;
    const int first_words = min(ring, all_stages) * of_stage;
    // Zeros are looked for from the end of the first ring on: those 64 entries are read with it.
    Found found{.first = (ring * kRowsOfStage / kWordsAtOnce - 1) * kWordsAtOnce};
    const int end =
        skips_zeros() ? min(found.first + 2 * kWordsAtOnce, all_stages * of_stage) : first_words;
    Words words;
#pragma unroll 1
    for (int first = 0; first < end; first += kWordsAtOnce) {
      words = read_h(first, end);
      wait_for_h(words, first, end);
      keep_h(words, first, first_words, 0);
    }
    float y[kTiles][4] = {};
    int slot = 0;
    int next = ring;                     // the stage that follows in this slot
    int stages = min(ring, all_stages);  // in the ring
#pragma unroll 1
    while (stages > 0) {
      const int of_next = next * of_stage;
      int count = count_ - next * kRowsOfStage;  // at most, where zeros are skipped
      if (count > 0 && !(skips_zeros() && found.is_next_read)) {
        const int first = skips_zeros() ? found.first + kWordsAtOnce : of_next;
        words = read_h(first, first + (skips_zeros() ? kWordsAtOnce : of_stage));
        found.is_next_read = true;
      }
      wait_for_oldest_copies(ring);
      __syncwarp();
      multiply(y, ring_ + slot * kStageBytes);
      __syncwarp();
      if (count > 0) {
        if (skips_zeros()) {
          count = find(found, words, next, slot);
        }
        copy_rows(next, slot, count);
        if (!skips_zeros()) {
          wait_for_h(words, of_next, of_next + of_stage);
          keep_h(words, of_next, of_next + of_stage, slot - next);
        }
      }
      commit_copies();
      stages -= count > 0 ? 0 : 1;
      ++next;
      slot = slot + 1 == ring ? 0 : slot + 1;
    }
    wait_for_copies<0>();
    add_up(y);
  }

 private:
  static constexpr int kColumns = kTiles * 8;
  static constexpr int kPitch = kColumns * 2 + 16;  // bytes; eight rows in different banks
  static constexpr int kStageBytes = kRowsOfStage * (kPitch + kMostTokens * 2);
  static constexpr int kPieces = kRowsOfStage * kTiles / kWarp;  // of a lane
  static_assert(kRowsOfStage * kTiles % kWarp == 0);

  __device__ bool skips_zeros() const { return word_shift_ == 0 && !p_.whole_units; }
  __device__ int neuron_of(int entry) const {
    return b_.first_of_half * kUnit + (entries_[entry] & ~kIdle);
  }

  // Pieces of 16 bytes of a stage, row by row, one after the other by the lanes; zeros for rows
  // from `count` on.
  __device__ void copy_rows(int stage, int slot, int count) const {
    if (count <= 0) {
      return;
    }
    const uint32_t to = ring_ + slot * kStageBytes;
    const uint16_t* const entries = entries_ + stage * kRowsOfStage;
    const bool is_whole = is_whole_ && count >= kRowsOfStage;
    const int columns = p_.shape.out - first_column_;
    // Of some pieces at a time what is read from shared memory comes first: then copies follow one
    // after the other.
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int first = 0; first < kPieces; first += kAtOnce) {
      uint32_t from[kAtOnce];  // bytes of down
      bool there[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce && first + k < kPieces; ++k) {
        const Piece piece = piece_of(first + k);
        const uint32_t entry = is_whole || piece.row < count ? entries[piece.row] : uint32_t{kIdle};
        there[k] = is_whole || ((entry & kIdle) == 0 && piece.column < columns);
        from[k] = there[k] ? rows_ + entry * p_.down_stride + piece.column * 2 : 0;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce && first + k < kPieces; ++k) {
        copy16_once(to + piece_of(first + k).at, static_cast<const uint8_t*>(p_.down) + from[k],
                    there[k] ? 16 : 0);
      }
    }
  }
  struct Piece {
    int row;
    int column;
    uint32_t at;  // bytes of the stage
  };
  __device__ Piece piece_of(int k) const {
    if constexpr (kWarp % kTiles == 0) {  // always of the same columns
      const int row = b_.lane / kTiles + k * (kWarp / kTiles);
      const int column = b_.lane % kTiles;
      return {row, column * 8, static_cast<uint32_t>(row * kPitch + column * 16)};
    } else {
      const int piece = k * kWarp + b_.lane;
      const int row = piece / kTiles;
      static_assert(kPitch == kTiles * 16 + 16);
      return {row, (piece - row * kTiles) * 8, static_cast<uint32_t>((piece + row) * 16)};
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
      if (i < end && entry < count_ && !(p_.whole_units && (entries_[entry] & kIdle) != 0)) {
        const int place = p_.whole_units ? neuron_of(entry) : first_place_ + entry;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                     : "=l"(words.of_lane[k])
                     : "l"(p_.h + (place << word_shift_) + (i & ((1 << word_shift_) - 1)))
                     : "memory");
      }
    }
    return words;
  }
  __device__ void wait_for_h(Words& words, int first, int end) const {
#pragma unroll 1
    while (words.of_lane[0] >> 32 != tag_ || words.of_lane[1] >> 32 != tag_) {
      words = read_h(first, end);
    }
  }
  // Leaves them in their stages: stage i is in slot i + slots.
  __device__ void keep_h(const Words& words, int first, int end, int slots) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = first + k * kWarp + b_.lane;
      const int entry = i >> word_shift_;
      const int word = i & ((1 << word_shift_) - 1);
      if (i < end) {
        store_h(entry / kRowsOfStage + slots, entry % kRowsOfStage, word,
                static_cast<uint32_t>(words.of_lane[k]));
      }
    }
  }
  __device__ void store_h(int slot, int row, int word, uint32_t h) const {
    asm volatile(
        "st.shared.u32 [%0], %1;" ::"r"(ring_ + slot * kStageBytes + kRowsOfStage * kPitch +
                                        row * kMostTokens * 2 + word * 4),
        "r"(h)
        : "memory");
  }

  // 64 entries whose h is known, two of a lane. The words after them are on their way.
  struct Found {
    int first;
    uint32_t h[2] = {};
    uint32_t left[2] = {};  // lanes whose entry is not zero, and in no stage yet
    bool is_next_read = true;
  };
  // The next entries that are not zero become those of a stage, whose h is left in its slot.
  // Returns how many: 16 but for the last stages. Entries move within this warp's part of the list,
  // to places of entries that were looked at before.
  __device__ int find(Found& found, Words& words, int stage, int slot) const {
    int count = 0;
#pragma unroll 1
    do {
      if ((found.left[0] | found.left[1]) == 0) {
        if (found.first + kWordsAtOnce >= count_) {
          break;
        }
        look_at_next(found, words);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t left = found.left[k];
        const bool is_left = (left >> b_.lane & 1) != 0;
        const int row = count + __popc(left & ((1u << b_.lane) - 1));
        const bool fits = is_left && row < kRowsOfStage;
        const uint16_t entry = fits ? entries_[found.first + k * kWarp + b_.lane] : uint16_t{0};
        count += __popc(left);
        found.left[k] = __ballot_sync(~0u, is_left && !fits);
        __syncwarp();
        if (fits) {
          entries_[stage * kRowsOfStage + row] = entry;
          store_h(slot, row, 0, found.h[k]);
        }
      }
    } while (count < kRowsOfStage);
    if (b_.lane >= count && b_.lane < kRowsOfStage) {
      store_h(slot, b_.lane, 0, 0);
    }
    __syncwarp();
    return count;
  }
  __device__ void look_at_next(Found& found, Words& words) const {
    found.first += kWordsAtOnce;
    wait_for_h(words, found.first, found.first + kWordsAtOnce);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int entry = found.first + k * kWarp + b_.lane;
      found.h[k] = static_cast<uint32_t>(words.of_lane[k]);
      const bool is_zero = (found.h[k] & 0x7fff7fff) == 0;  // +0 or -0, of both tokens
      // Those of the first ring have been read.
      found.left[k] = __ballot_sync(~0u, !is_zero && entry >= p_.at.down_stages * kRowsOfStage);
    }
    found.is_next_read = false;
    words.of_lane[0] = ~words.of_lane[0];  // not there: if they are needed before they are read
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
    constexpr int kQuads = kColumns / 4;
#pragma unroll 1
    for (int item = threadIdx.x; item < tokens * kQuads; item += kThreads) {
      const int t = item / kQuads;
      const int column = item % kQuads * 4;
      const float* const from = sums_ + t * kSumPitch + column;
      float4 parts[4] = {};
#pragma unroll
      for (int w = 0; w < kWarpsOfBlock; ++w) {
        parts[w % 4] =
            sum(parts[w % 4], *reinterpret_cast<const float4*>(from + w * tokens * kSumPitch));
      }
      const float4 own = sum(sum(parts[0], parts[1]), sum(parts[2], parts[3]));
      if (b_.half == 1) {
        send(shared_address(exchange_) + item * 16, exchange_there_, 0, own);
      } else if (first_column_ + column < p_.shape.out) {
        barrier_wait_cluster(exchange_there_, 0);
        store_y(t, first_column_ + column,
                sum(own, *reinterpret_cast<const float4*>(exchange_ + item * 4)));
      }
    }
  }
  static __device__ float4 sum(const float4& a, const float4& b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
  // Four columns, of which all or none are there; rows of y may lie at any address.
  __device__ void store_y(int t, int column, const float4& sums) const {
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float bias =
          p_.down_bias != nullptr ? f32_of(static_cast<const T*>(p_.down_bias)[column + i]) : 0.f;
      static_cast<T*>(p_.y)[t * p_.y_stride + column + i] = from_f32<T>(values[i] + bias);
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  int first_column_;
  int first_;
  int count_;      // entries of this warp
  bool is_whole_;  // all columns are there, and no entry is idle
  uint32_t rows_;  // bytes of down before this half and the first column
  int first_place_;
  int word_shift_;  // an entry has 1 << word_shift_ words of h
  uint32_t tag_;
  uint16_t* entries_;
  uint32_t ring_;
  float* sums_;
  float* exchange_;
  uint32_t exchange_there_;
};

}  // namespace sparsellm::fused
