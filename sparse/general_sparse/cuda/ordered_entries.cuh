#pragma once

#include <cstdint>

#include "sparse/general_sparse/bits/row_bits.h"

// The entries of a lane in the orders of host/bank_order.h, one after the other, as a thread of an
// encoder on a CUDA device takes them out of the bits of its group. `Bits` is WordBits.
namespace sparsellm::general_sparse {

struct LaneEntry {
  int column;  // in the panel; kNoColumn: an entry without a nonzero
  int code;    // its stored position or difference
};
inline constexpr int kNoColumn = -1;

// Differences: the order of NearbyBankOrder, bridges, and fillers for ever.
// All that may come next is less than 128 columns after the first one that is left, or is it. So a
// window of three words is enough, the first of which has a column that is left.
template <class Bits>
class NearbyEntries {
 public:
  __device__ NearbyEntries(const GroupBits& group, int lane)
      : group_(group), wanted_class_(lane % kClasses) {
    for (int i = 0; i < kWindow; ++i) {
      all_[i] = group_(i);
      left_[i] = all_[i];
    }
    skip_taken_words();
  }

  __device__ LaneEntry next() {
    if (left_[0] == 0) {
      return {.column = kNoColumn, .code = 0};
    }
    const int first = Bits::first(left_[0]);  // columns are counted from that of the window
    const int before = before_ - first_word_ * kBitsOfWord;
    if (first - before > kReach) {
      before_ += kReach;
      return {.column = kNoColumn, .code = kReach};
    }
    int column = first_from(left_, kEveryEighth << wanted_class_, 0);
    if (column != first) {
      const int after = column == kNone ? kNone : first_from(all_, ~uint64_t{0}, column + 1);
      if (after - first > kReach || column - before > kReach) {
        column = first;
      }
    }
    wanted_class_ = (wanted_class_ + 1) % kClasses;
    for (int i = 0; i < kWindow; ++i) {
      left_[i] &= i == column / kBitsOfWord ? ~(uint64_t{1} << column % kBitsOfWord) : ~uint64_t{0};
    }
    const LaneEntry entry{.column = first_word_ * kBitsOfWord + column, .code = column - before};
    before_ = entry.column;
    skip_taken_words();
    return entry;
  }

 private:
  static constexpr int kClasses = 8;
  static constexpr uint64_t kEveryEighth = 0x0101010101010101u;
  static constexpr int kReach = static_cast<int>(most_difference(PositionCode::i8));
  static constexpr int kWindow = 3;  // words
  // No column of the window; farther than kReach from all that may be the first.
  static constexpr int kNone = kWindow * kBitsOfWord;
  static_assert(kNone - (kBitsOfWord - 1) > kReach);

  // The first column from `from` on that is in `columns` and whose bit in its word is in `of_word`.
  static __device__ int first_from(const uint64_t (&columns)[kWindow], uint64_t of_word, int from) {
    int first = kNone;
    for (int i = kWindow - 1; i >= 0; --i) {
      const int skipped = from - i * kBitsOfWord;
      uint64_t word = columns[i] & of_word;
      if (skipped > 0) {
        word = skipped < kBitsOfWord ? word >> skipped << skipped : 0;
      }
      first = word != 0 ? i * kBitsOfWord + Bits::first(word) : first;
    }
    return first;
  }

  __device__ void skip_taken_words() {
    while (left_[0] == 0 && first_word_ < group_.words) {
      for (int i = 0; i + 1 < kWindow; ++i) {
        all_[i] = all_[i + 1];
        left_[i] = left_[i + 1];
      }
      ++first_word_;
      all_[kWindow - 1] = group_(first_word_ + kWindow - 1);
      left_[kWindow - 1] = all_[kWindow - 1];
    }
  }

  GroupBits group_;
  uint64_t all_[kWindow];   // columns with an entry
  uint64_t left_[kWindow];  // those that were not taken
  int first_word_ = 0;      // of the window
  int before_ = 0;          // the position of the entry before
  int wanted_class_;
};

// Columns, ascending, and fillers for ever.
template <class Bits>
class AscendingEntries {
 public:
  explicit __device__ AscendingEntries(const GroupBits& group) : group_(group), left_(group(0)) {}

  __device__ LaneEntry next() {
    while (left_ == 0 && word_ < group_.words) {
      left_ = group_(++word_);
    }
    if (left_ == 0) {
      return {.column = kNoColumn, .code = before_};
    }
    before_ = word_ * kBitsOfWord + Bits::first(left_);
    left_ &= left_ - 1;
    return {.column = before_, .code = before_};
  }

 private:
  GroupBits group_;
  uint64_t left_;  // columns of the word that were not taken
  int word_ = 0;
  int before_ = 0;  // the position of the entry before
};

// Memory of a lane for BankEntries. Elements are `stride` apart, so that the lanes of a warp can
// have theirs side by side.
struct BankMemory {
  static constexpr int kClasses = 32;

  uint64_t* classes = nullptr;  // [kClasses][class_words], a bit for every 32nd column of a panel
  uint16_t* left = nullptr;     // [kClasses], columns that are set
  int class_words = 0;
  int stride = 1;

  static constexpr int64_t class_words_for(int64_t panel_columns) {
    return ceil_div(panel_columns, int64_t{kClasses} * kBitsOfWord);
  }
  static constexpr int64_t bytes(int64_t class_words) {
    return kClasses * (class_words * int64_t{sizeof(uint64_t)} + int64_t{sizeof(uint16_t)});
  }
};

// Columns: the order of BankOrder, and fillers for ever. A panel has at most 65536 columns.
template <class Bits>
class BankEntries {
 public:
  __device__ BankEntries(const GroupBits& group, int lane, const BankMemory& memory)
      : memory_(memory), wanted_(lane % kClasses) {
    for (int i = 0; i < kClasses * memory_.class_words; ++i) {
      memory_.classes[i * memory_.stride] = 0;
    }
    for (int i = 0; i < kClasses; ++i) {
      memory_.left[i * memory_.stride] = 0;
    }
    for (int w = 0; w < group.words; ++w) {
      for (uint64_t word = group(w); word != 0; word &= word - 1) {
        const int bit = Bits::first(word);
        const int of_class = bit % kClasses;
        const int in_class = (w * kBitsOfWord + bit) / kClasses;
        class_word(of_class, in_class / kBitsOfWord) |= uint64_t{1} << in_class % kBitsOfWord;
        ++left(of_class);
        with_some_ |= uint32_t{1} << of_class;
      }
    }
  }

  __device__ LaneEntry next() {
    if (with_some_ == 0) {
      return {.column = kNoColumn, .code = before_};
    }
    const int of_class = next_class();
    wanted_ = (wanted_ + 1) % kClasses;
    int w = 0;
    while (class_word(of_class, w) == 0) {
      ++w;
    }
    const uint64_t word = class_word(of_class, w);
    class_word(of_class, w) = word & (word - 1);
    if (--left(of_class) == 0) {
      with_some_ &= ~(uint32_t{1} << of_class);
    }
    before_ = (w * kBitsOfWord + Bits::first(word)) * kClasses + of_class;
    return {.column = before_, .code = before_};
  }

 private:
  static constexpr int kClasses = BankMemory::kClasses;
  static constexpr int kSimilar = 8;  // classes of one remainder are so far apart
  static constexpr uint32_t kEverySimilar = 0x01010101u;

  __device__ uint64_t& class_word(int of_class, int word) const {
    return memory_.classes[(of_class * memory_.class_words + word) * memory_.stride];
  }
  __device__ uint16_t& left(int of_class) const { return memory_.left[of_class * memory_.stride]; }

  // The first of the largest among every step-th class.
  __device__ int largest(int first, int step) const {
    int best = first;
    int most = left(first);
    for (int other = first + step; other < kClasses; other += step) {
      const int count = left(other);
      best = count > most ? other : best;
      most = count > most ? count : most;
    }
    return best;
  }

  __device__ int next_class() const {
    if ((with_some_ >> wanted_ & 1) != 0) {
      return wanted_;
    }
    const int similar = wanted_ % kSimilar;
    return (with_some_ & kEverySimilar << similar) != 0 ? largest(similar, kSimilar)
                                                        : largest(0, 1);
  }

  BankMemory memory_;
  uint32_t with_some_ = 0;  // bit c: class c has columns left
  int before_ = 0;          // the position of the entry before
  int wanted_;
};

}  // namespace sparsellm::general_sparse
