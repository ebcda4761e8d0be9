#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/counter_random.h"

namespace sparsellm {

// A random number below `count`, which is at most 2^32, of 32 random bits.
constexpr int64_t scale_to(uint64_t bits, int64_t count) {
  return static_cast<int64_t>(bits * static_cast<uint64_t>(count) >> 32);
}

// Any of `count` columns: the index-th number of a stream.
constexpr int64_t any_column(uint64_t seed, int64_t index, int64_t count) {
  return scale_to(uniform_bits(seed, index) >> 21, count);
}

// Draws the columns of random rows, one row after the other with the same memory.
class DistinctColumns {
 public:
  // Of `count` columns as many as result has room for, ascending: the first different ones of
  // draw(0), draw(1), ..., among which sooner or later is any column. Where nearly all are wanted
  // the last may be missing for long: after 32 draws for each the first columns fill it up.
  template <class Draw>
  void draw(int64_t count, std::span<uint32_t> result, Draw&& draw) {
    const int64_t wanted = std::ssize(result);
    if (wanted == count) {
      std::iota(result.begin(), result.end(), 0u);
    } else if (wanted < count / kMarkedShare) {
      draw_and_sort(result, draw);
    } else {
      mark(count, wanted, draw);
      take_marked(count, result, true);
    }
  }

  // Each set of columns with the same probability.
  void draw_any(int64_t count, std::span<uint32_t> result, uint64_t seed) {
    const auto any = [&](int64_t i) { return any_column(seed, i, count); };
    const int64_t left = count - std::ssize(result);
    if (left == 0 || std::ssize(result) <= left) {
      draw(count, result, any);
    } else {
      mark(count, left, any);  // those to be left out, which are fewer
      take_marked(count, result, false);
    }
  }

 private:
  static constexpr int64_t kMarkedShare = 64;  // of columns; of fewer a list is sorted sooner
  static constexpr int64_t kMostDraws = 32;

  template <class Draw>
  static void draw_and_sort(std::span<uint32_t> result, Draw&& draw) {
    int64_t drawn = 0;
    for (auto end = result.begin(); end != result.end();) {
      const auto middle = end;
      for (; end != result.end(); ++end) {
        *end = static_cast<uint32_t>(draw(drawn++));
      }
      std::sort(middle, end);
      std::inplace_merge(result.begin(), middle, end);
      end = std::unique(result.begin(), end);
    }
  }

  template <class Draw>
  void mark(int64_t count, int64_t wanted, Draw&& draw) {
    marks_.assign(static_cast<size_t>((count + 63) / 64), 0);
    int64_t marked = 0;
    for (int64_t i = 0; marked < wanted && i < kMostDraws * wanted; ++i) {
      marked += mark_column(draw(i));
    }
    for (int64_t column = 0; marked < wanted; ++column) {
      marked += mark_column(column);
    }
  }

  // 1 if it was not marked, else 0.
  int64_t mark_column(int64_t column) {
    uint64_t& word = marks_[static_cast<size_t>(column / 64)];
    const uint64_t bit = uint64_t{1} << (column % 64);
    const bool marked = (word & bit) != 0;
    word |= bit;
    return marked ? 0 : 1;
  }

  // Those of the columns that are marked, or are not.
  void take_marked(int64_t count, std::span<uint32_t> result, bool marked) {
    size_t taken = 0;
    for (size_t i = 0; i < marks_.size(); ++i) {
      uint64_t word = marked ? marks_[i] : ~marks_[i];
      const int64_t columns = count - 64 * static_cast<int64_t>(i);
      word &= columns < 64 ? (uint64_t{1} << columns) - 1 : ~uint64_t{0};
      for (; word != 0; word &= word - 1) {
        result[taken++] =
            static_cast<uint32_t>(64 * i) + static_cast<uint32_t>(std::countr_zero(word));
      }
    }
  }

  std::vector<uint64_t> marks_;  // a bit for each column
};

}  // namespace sparsellm
