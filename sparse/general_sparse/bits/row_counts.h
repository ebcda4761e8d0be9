#pragma once

#include <cstdint>

#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/matrices/row_statistics.h"

// What the encoders of dense matrices count before they choose a layout. On a CUDA device a thread
// calls each of these functions by itself. `Bits` is WordBits there, and HostWordBits on the host.
namespace sparsellm::general_sparse {

// The sums that RowStatistics are made of, as far as layouts are chosen by them.
struct NonzeroSums {
  unsigned long long nonzeros = 0;
  unsigned long long gaps = 0;
  unsigned long long gap_sum = 0;  // of columns
  unsigned long long bridges = 0;
  unsigned long long first_bridges = 0;
  unsigned long long blocks[3] = {};  // of 2, 4 and 8 rows

  constexpr void add(const NonzeroSums& other) {
    nonzeros += other.nonzeros;
    gaps += other.gaps;
    gap_sum += other.gap_sum;
    bridges += other.bridges;
    first_bridges += other.first_bridges;
    for (int i = 0; i < 3; ++i) {
      blocks[i] += other.blocks[i];
    }
  }
};
inline constexpr int kMostBlockRows = 8;

// What choose_layout() reads of row_statistics().
inline RowStatistics statistics_of(const NonzeroSums& sums) {
  RowStatistics s;
  s.nonzeros = static_cast<int64_t>(sums.nonzeros);
  s.bridges = static_cast<int64_t>(sums.bridges);
  s.first_bridges = static_cast<int64_t>(sums.first_bridges);
  s.mean_gap =
      sums.gaps == 0 ? 0.0 : static_cast<double>(sums.gap_sum) / static_cast<double>(sums.gaps);
  for (size_t i = 0; i < s.shared.size(); ++i) {
    s.shared[i].blocks = static_cast<int64_t>(sums.blocks[i]);
  }
  return s;
}

template <class Bits>
constexpr void add_row(const RowBits& m, int64_t row, NonzeroSums& sums) {
  constexpr int64_t kLongGap = RowStatistics::kLongGap;
  const uint64_t* const words = m.words + row * m.row_words;
  unsigned long long nonzeros = 0;
  int64_t first = 0;
  int64_t last = 0;  // that was seen
  for (int64_t w = 0; w < m.row_words; ++w) {
    const uint64_t word = words[w];
    if (word == 0) {
      continue;
    }
    const int64_t column = w * kBitsOfWord + Bits::first(word);
    if (nonzeros == 0) {
      first = column;
      sums.first_bridges += static_cast<unsigned long long>(column / kLongGap);
    } else {
      sums.bridges += static_cast<unsigned long long>((column - last - 1) / kLongGap);
    }
    last = w * kBitsOfWord + Bits::last(word);
    nonzeros += static_cast<unsigned long long>(Bits::count(word));
  }
  if (nonzeros > 0) {
    sums.nonzeros += nonzeros;
    sums.gaps += nonzeros - 1;
    sums.gap_sum += static_cast<unsigned long long>(last - first);
  }
}

// The blocks of kMostBlockRows rows, of which the last ones may not exist.
template <class Bits>
constexpr void add_blocks(const RowBits& m, int64_t first_row, NonzeroSums& sums) {
  const uint64_t* const words = m.words + first_row * m.row_words;
  for (int64_t w = 0; w < m.row_words; ++w) {
    uint64_t of_all = 0;
    for (int four = 0; four < 2; ++four) {
      uint64_t of_four = 0;
      for (int two = 0; two < 2; ++two) {
        uint64_t of_two = 0;
        for (int one = 0; one < 2; ++one) {
          const int row = 4 * four + 2 * two + one;
          of_two |= first_row + row < m.rows ? words[row * m.row_words + w] : 0;
        }
        sums.blocks[0] += static_cast<unsigned long long>(Bits::count(of_two));
        of_four |= of_two;
      }
      sums.blocks[1] += static_cast<unsigned long long>(Bits::count(of_four));
      of_all |= of_four;
    }
    sums.blocks[2] += static_cast<unsigned long long>(Bits::count(of_all));
  }
}

// The entries of a group in a panel. If most_difference is not 0, with those that bridge longer
// gaps, also the one from the first column of the panel; it is 64 at least.
template <class Bits>
constexpr uint32_t count_entries(const GroupBits& group, int most_difference) {
  int entries = 0;
  int before = 0;
  for (int w = 0; w < group.words; ++w) {
    const uint64_t word = group(w);
    entries += Bits::count(word);
    if (most_difference > 0 && word != 0) {
      const int gap = w * kBitsOfWord + Bits::first(word) - before;
      entries += static_cast<int>(bridges_of(gap, most_difference));
      before = w * kBitsOfWord + Bits::last(word);
    }
  }
  return static_cast<uint32_t>(entries);
}

}  // namespace sparsellm::general_sparse
