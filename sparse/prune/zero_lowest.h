#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// Sets the `count` elements with the lowest keys among some rows of a matrix to zero, of equal keys
// those that come first in row-major order. A radix selection: the count-th lowest key is found
// eight bits at a time, from the top, by counting; no element moves and no key is stored.
template <class T, class Score>
class LowestElements {
 public:
  LowestElements(const Tensor& w, Range rows, const Score& score, ThreadPool& threads)
      : w_(w),
        rows_(rows),
        score_(score),
        threads_(threads),
        block_rows_(1 + kBlockElements / std::max<int64_t>(w.size(1), 1)),
        blocks_((rows.count + block_rows_ - 1) / block_rows_) {}

  // 0 <= count <= the number of elements
  void zero(int64_t count) {
    if (count > 0) {
      const Threshold threshold = select(count);
      zero(threshold, first_ties(threshold));
    }
  }

 private:
  static constexpr int kDigitBits = 8;
  static constexpr int64_t kBlockElements = 16384;
  using Histogram = std::array<int64_t, 1 << kDigitBits>;

  // The chosen elements: all with a lower key, and the first `ties` with this one.
  struct Threshold {
    uint32_t key = 0;
    int64_t ties = 0;
  };

  // Calls body(w, row, column) for the elements of some blocks, in order.
  template <class Body>
  void for_each_element(int64_t begin_block, int64_t end_block, Body&& body) const {
    const int64_t begin = rows_.begin + begin_block * block_rows_;
    const int64_t end = rows_.begin + std::min(end_block * block_rows_, rows_.count);
    for (int64_t row = begin; row < end; ++row) {
      T* const values = w_.row<T>(row);
      for (int64_t column = 0; column < w_.size(1); ++column) {
        body(values[column], row, column);
      }
    }
  }

  // Of the digit at `shift` of those keys that are equal to `known` in the bits of `mask`.
  Histogram count_digits(uint32_t known, uint32_t mask, int shift) const {
    Histogram total{};
    std::mutex mutex;
    threads_.parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
      Histogram part{};
      for_each_element(begin, end, [&](T w, int64_t row, int64_t column) {
        const uint32_t key = score_.key(w, row, column);
        part[key >> shift & (part.size() - 1)] += (key & mask) == known ? 1 : 0;
      });
      const std::lock_guard lock(mutex);
      for (size_t digit = 0; digit < total.size(); ++digit) {
        total[digit] += part[digit];
      }
    });
    return total;
  }

  Threshold select(int64_t count) const {
    Threshold threshold{.key = 0, .ties = count};
    uint32_t mask = 0;
    for (int shift = Score::kBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
      const Histogram counts = count_digits(threshold.key, mask, shift);
      uint32_t digit = 0;
      for (; threshold.ties > counts[digit]; ++digit) {
        threshold.ties -= counts[digit];
      }
      threshold.key |= digit << shift;
      mask |= (uint32_t{1 << kDigitBits} - 1) << shift;
    }
    return threshold;
  }

  // How many of the chosen ties come before each block.
  std::vector<int64_t> first_ties(const Threshold& threshold) const {
    std::vector<int64_t> ties(static_cast<size_t>(blocks_), 0);
    if (blocks_ > 1) {
      threads_.parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          int64_t equal = 0;
          for_each_element(block, block + 1, [&](T w, int64_t row, int64_t column) {
            equal += score_.key(w, row, column) == threshold.key ? 1 : 0;
          });
          ties[static_cast<size_t>(block)] = equal;
        }
      });
    }
    int64_t before = 0;
    for (int64_t& block : ties) {
      before += std::exchange(block, before);
    }
    return ties;
  }

  void zero(const Threshold& threshold, const std::vector<int64_t>& ties_before) const {
    threads_.parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
      int64_t ties = threshold.ties - ties_before[static_cast<size_t>(begin)];
      for_each_element(begin, end, [&](T& w, int64_t row, int64_t column) {
        const uint32_t key = score_.key(w, row, column);
        if (key <= threshold.key) {
          const bool chosen = key < threshold.key || ties > 0;
          ties -= key == threshold.key ? 1 : 0;
          w = chosen ? T{} : w;
        }
      });
    });
  }

  const Tensor& w_;
  Range rows_;
  const Score& score_;
  ThreadPool& threads_;
  int64_t block_rows_;
  int64_t blocks_;
};

}  // namespace sparsellm
