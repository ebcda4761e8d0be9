#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "sparse/cpu/walk.h"
#include "sparse/encoded_weight.h"
#include "sparse/matrices/compressed_rows.h"

// The nonzeros of an encoding by its format's Walker (walk.h), whatever the order that it has in a
// row, on all threads. What has the magnitude 0 is left out.
namespace sparsellm {

template <class T>
bool has_magnitude_0(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value == 0.0f;
  } else {
    return (value.bits & 0x7fff) == 0;
  }
}

template <class T>
void sort_row(std::span<uint32_t> columns, std::span<T> values) {
  std::vector<std::pair<uint32_t, T>> nonzeros;
  for (size_t i = 0; i < columns.size(); ++i) {
    nonzeros.emplace_back(columns[i], values[i]);
  }
  std::ranges::sort(nonzeros, {}, &std::pair<uint32_t, T>::first);
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i] = nonzeros[i].first;
    values[i] = nonzeros[i].second;
  }
}

// T: the type of e's dtype; `walker` is of e.
template <class T, class W>
CompressedRows rows_of_walk(const W& walker, const EncodedWeight& e, ThreadPool& threads) {
  constexpr int64_t kBlocksOfRange = 4;
  const auto for_each_block = [&](auto&& f) {
    threads.parallel_for((e.rows + W::kBlockRows - 1) / W::kBlockRows, kBlocksOfRange,
                         [&](int64_t begin, int64_t end) {
                           for (int64_t block = begin; block < end; ++block) {
                             f(block);
                           }
                         });
  };
  std::vector<int64_t> starts(static_cast<size_t>(e.rows) + 1);
  for_each_block([&](int64_t block) {
    int64_t* const counts = starts.data() + block * W::kBlockRows + 1;
    walker.walk(block, [&](int64_t row, int64_t, T value) {
      counts[row] += has_magnitude_0(value) ? 0 : 1;
    });
  });
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  CompressedRows m(e.dtype, e.rows, e.columns, starts.back());
  std::ranges::copy(starts, m.starts().begin());
  const std::span<uint32_t> columns = m.column_indices();
  const std::span<T> values = m.values<T>();
  for_each_block([&](int64_t block) {
    const int64_t first_row = block * W::kBlockRows;
    const int64_t rows = std::min(W::kBlockRows, e.rows - first_row);
    std::array<int64_t, W::kBlockRows> next{};
    std::copy_n(starts.begin() + first_row, rows, next.begin());
    walker.walk(block, [&](int64_t row, int64_t column, T value) {
      if (!has_magnitude_0(value)) {
        const auto i = static_cast<size_t>(next[static_cast<size_t>(row)]++);
        columns[i] = static_cast<uint32_t>(column);
        values[i] = value;
      }
    });
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      const auto begin = static_cast<size_t>(starts[static_cast<size_t>(row)]);
      const auto count = static_cast<size_t>(starts[static_cast<size_t>(row) + 1]) - begin;
      if (!std::ranges::is_sorted(columns.subspan(begin, count))) {
        sort_row(columns.subspan(begin, count), values.subspan(begin, count));
      }
    }
  });
  return m;
}

// The same of an encoding of 16-bit values.
template <template <class> class Walker>
CompressedRows walked_rows(const EncodedWeight& e, ThreadPool& threads) {
  CompressedRows m(e.dtype, 0, 0, 0);
  visit_half(e.dtype, [&]<class T>(T) { m = rows_of_walk<T>(Walker<T>(e), e, threads); });
  return m;
}

}  // namespace sparsellm
