#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/general_sparse/host/word_bits.h"

namespace sparsellm::general_sparse {

inline constexpr int kNoColumnOfPanel = -1;  // of an entry without a nonzero

// The entries of a group in the order of its columns. The orders below have the same function.
template <PositionCode code>
class ColumnOrder {
 public:
  // f(column, stored position or difference) for each entry of a group in a panel, bridges
  // included, which have no column.
  template <class F>
  void for_each(const GroupBits& group, int /*lane*/, F&& f) {
    constexpr int kReach = static_cast<int>(most_difference(code));
    int before = 0;
    for (int w = 0; w < group.words; ++w) {
      for (uint64_t word = group(w); word != 0; word &= word - 1) {
        const int column = w * kBitsOfWord + HostWordBits::first(word);
        if constexpr (has_differences(code)) {
          for (; column - before > kReach; before += kReach) {
            f(kNoColumnOfPanel, kReach);
          }
        }
        f(column, column - before);
        before = has_differences(code) ? column : 0;
      }
    }
  }
};

// An order of the entries of a lane in which the 32 lanes of a slice, each in its own order, read x
// from different banks of shared memory: at entry e lane l reads a column that is (l + e) modulo
// 32, as long as it has one. Where x has 16 bytes for a column (8 tokens of 16 bits) one wavefront
// has the columns of 8 lanes, of fewer bytes those of 16 or 32 lanes: their remainders modulo 8, 16
// and 32 differ. Without one a lane takes the next best, a column with that remainder modulo 8, of
// the class that has the most left; at last any of the largest class. Columns of a class ascend.
class BankOrder {
 public:
  // A panel has at most 65536 columns.
  template <class F>
  void for_each(const GroupBits& group, int lane, F&& f) {
    set_classes(group);
    int wanted = lane % kClasses;
    for (int64_t left = entries_; left > 0; --left) {
      const int of_class = next_class(wanted);
      wanted = (wanted + 1) % kClasses;
      uint32_t& key = keys_[static_cast<size_t>(of_class)];
      key -= kClasses;
      const int column = columns_[static_cast<size_t>(of_class) * capacity_ + left_by(key)];
      f(column, column);
    }
  }

 private:
  static constexpr int kClasses = 32;
  static constexpr int kSimilar = 8;  // classes of one remainder are so far apart

  // The key of the larger class is larger; of equal ones that of the first.
  static constexpr uint32_t empty_key(int of_class) {
    return static_cast<uint32_t>(kClasses - 1 - of_class);
  }
  static constexpr int class_by(uint32_t key) {
    return kClasses - 1 - static_cast<int>(key % kClasses);
  }
  static constexpr size_t left_by(uint32_t key) { return key / kClasses; }

  void set_classes(const GroupBits& group) {
    capacity_ = static_cast<size_t>(group.words) * (kBitsOfWord / kClasses);
    columns_.resize(std::max(columns_.size(), kClasses * capacity_));
    std::array<size_t, kClasses> counts{};
    for (int w = group.words - 1; w >= 0; --w) {
      for (uint64_t word = group(w); word != 0;) {
        const int bit = HostWordBits::last(word);
        word ^= uint64_t{1} << bit;
        const auto of_class = static_cast<size_t>(bit % kClasses);
        columns_[of_class * capacity_ + counts[of_class]++] =
            static_cast<uint16_t>(w * kBitsOfWord + bit);
      }
    }
    entries_ = 0;
    for (size_t c = 0; c < counts.size(); ++c) {
      keys_[c] = static_cast<uint32_t>(counts[c] * kClasses) + empty_key(static_cast<int>(c));
      entries_ += static_cast<int64_t>(counts[c]);
    }
  }

  int next_class(int wanted) const {
    const auto key_of = [&](int of_class) { return keys_[static_cast<size_t>(of_class)]; };
    if (left_by(key_of(wanted)) > 0) {
      return wanted;
    }
    uint32_t best = 0;
    for (int c = wanted % kSimilar; c < kClasses; c += kSimilar) {
      best = std::max(best, key_of(c));
    }
    return class_by(left_by(best) > 0 ? best : *std::max_element(keys_.begin(), keys_.end()));
  }

  std::vector<uint16_t> columns_;  // [kClasses][capacity_], of a class descending: the last is next
  size_t capacity_ = 0;
  int64_t entries_ = 0;
  std::array<uint32_t, kClasses> keys_{};  // how many of a class are left, and which class it is
};

// The same for entries of which each has to be within 127 columns after the one before, or 128
// before it, wherever this is so in the order of the columns. At entry e lane l reads the first
// column that is left and is (l + e) modulo 8, if it is near enough and leaves all others near
// enough, else the first one that is left. Of 32 columns that 4 wavefronts could read, this takes
// 4.8 at 50 % of zeros, 5.5 at 70 % and 6.3 at 80 %, an order by columns 9.8.
class NearbyBankOrder {
 public:
  template <class F>
  void for_each(const GroupBits& group, int lane, F&& f) {
    set_words(group);
    // Of the window, the columns of each class that were not taken.
    std::array<uint32_t, kClasses> classes{};
    for (size_t w = 0; w + 1 < kWindow; ++w) {
      append(left_[w], classes);
    }
    auto wanted = static_cast<unsigned>(lane) % kClasses;
    int before = 0;  // counted from the first column of word w, as are all columns below
    for (int w = 0; w < group.words; ++w, before -= kBitsOfWord) {
      const uint64_t* const all = all_.data() + w;
      uint64_t* const left = left_.data() + w;
      append(left[kWindow - 1], classes);
      const int last_of_two =
          all[1] != 0 ? kBitsOfWord + HostWordBits::last(all[1]) : HostWordBits::last(all[0]);
      while (left[0] != 0) {
        const int first = HostWordBits::first(left[0]);
        for (; first - before > kReach; before += kReach) {
          f(kNoColumnOfPanel, kReach);
        }
        // The one after `next` has to be within reach of the first one, if this comes next.
        const uint64_t of_third = all[2] & ((uint64_t{1} << first) - 1);
        const int last_near =
            of_third != 0 ? 2 * kBitsOfWord + HostWordBits::last(of_third) : last_of_two;
        const unsigned best =
            kClasses * static_cast<unsigned>(std::countr_zero(classes[wanted])) + wanted;
        const bool is_near = static_cast<int>(best) < std::min(last_near, before + kReach + 1);
        const unsigned next = is_near ? best : static_cast<unsigned>(first);
        classes[next % kClasses] &= ~(uint32_t{1} << next / kClasses);
        left[next / kBitsOfWord] &= ~(uint64_t{1} << next % kBitsOfWord);
        wanted = (wanted + 1) % kClasses;
        f(w * kBitsOfWord + static_cast<int>(next), static_cast<int>(next) - before);
        before = static_cast<int>(next);
      }
    }
  }

 private:
  static constexpr unsigned kClasses = 8;
  static constexpr uint64_t kEveryEighth = 0x0101010101010101u;
  static constexpr int kReach = static_cast<int>(most_difference(PositionCode::i8));
  // Words. All that may come next is less than 128 columns after the first one that is left, so in
  // this word or the next two.
  static constexpr size_t kWindow = 4;

  void set_words(const GroupBits& group) {
    const auto words = static_cast<size_t>(group.words) + kWindow;
    all_.resize(words);
    for (size_t w = 0; w < words; ++w) {
      all_[w] = group(static_cast<int>(w));
    }
    left_ = all_;
  }

  // Makes a word the last one of the window.
  static void append(uint64_t word, std::array<uint32_t, kClasses>& classes) {
    for (unsigned c = 0; c < kClasses; ++c) {
      const uint64_t bytes = word >> c & kEveryEighth;  // of which each becomes a bit
      classes[c] = classes[c] >> 8 | static_cast<uint32_t>(bytes * 0x0102040810204080u >> 56) << 24;
    }
  }

  std::vector<uint64_t> all_;   // columns with an entry
  std::vector<uint64_t> left_;  // those that were not taken
};

}  // namespace sparsellm::general_sparse
