#include "sparse/matrices/row_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

namespace sparsellm {
namespace {

constexpr int64_t kMostSharing = 8;  // rows

// What is counted of the nonzeros. Whole numbers: their sums are the same in every order.
struct NonzeroCounts {
  std::array<int64_t, 1 << kMostSharing> masks{};  // blocks of 8 rows by which rows have a nonzero
  int64_t gaps = 0;
  int64_t gap_sum = 0;
  int64_t long_gaps = 0;
  int64_t bridges = 0;
  int64_t first_bridges = 0;

  void add(const NonzeroCounts& other) {
    for (size_t mask = 0; mask < masks.size(); ++mask) {
      masks[mask] += other.masks[mask];
    }
    gaps += other.gaps;
    gap_sum += other.gap_sum;
    long_gaps += other.long_gaps;
    bridges += other.bridges;
    first_bridges += other.first_bridges;
  }
};

void count_gaps(std::span<const uint32_t> columns, NonzeroCounts& counts) {
  if (columns.empty()) {
    return;
  }
  for (size_t i = 1; i < columns.size(); ++i) {
    const int64_t gap = columns[i] - columns[i - 1];
    counts.long_gaps += gap > RowStatistics::kLongGap ? 1 : 0;
    counts.bridges += (gap - 1) / RowStatistics::kLongGap;
  }
  counts.gaps += std::ssize(columns) - 1;
  counts.gap_sum += columns.back() - columns.front();
  counts.first_bridges += columns.front() / RowStatistics::kLongGap;
}

// Of up to 8 rows from first_row on: they are merged by columns.
void count_masks(const CompressedRows& m, int64_t first_row, NonzeroCounts& counts) {
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();  // no column
  std::array<const uint32_t*, kMostSharing> next{};
  std::array<const uint32_t*, kMostSharing> ends{};
  std::array<uint32_t, kMostSharing> columns{};
  columns.fill(kEnd);
  for (int64_t row = first_row; row < std::min(first_row + kMostSharing, m.rows()); ++row) {
    const auto i = static_cast<size_t>(row - first_row);
    const std::span<const uint32_t> of_row = m.columns_of(row);
    next[i] = of_row.data();
    ends[i] = of_row.data() + of_row.size();
    columns[i] = of_row.empty() ? kEnd : of_row[0];
  }
  for (;;) {
    const uint32_t column = *std::min_element(columns.begin(), columns.end());
    if (column == kEnd) {
      return;
    }
    size_t mask = 0;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] == column) {
        mask |= size_t{1} << i;
        ++next[i];
        columns[i] = next[i] == ends[i] ? kEnd : *next[i];
      }
    }
    ++counts.masks[mask];
  }
}

void set_shared(const NonzeroCounts& counts, RowStatistics& s) {
  for (RowStatistics::SharedPositions& shared : s.shared) {
    int64_t full = 0;
    int64_t mostly_full = 0;
    for (size_t mask = 0; mask < counts.masks.size(); ++mask) {
      for (int64_t row = 0; row < kMostSharing; row += shared.rows) {
        const size_t block = mask >> row & ((size_t{1} << shared.rows) - 1);
        const int64_t nonzeros = std::popcount(block);
        shared.blocks += nonzeros > 0 ? counts.masks[mask] : 0;
        full += nonzeros == shared.rows ? nonzeros * counts.masks[mask] : 0;
        mostly_full += 2 * nonzeros > shared.rows ? nonzeros * counts.masks[mask] : 0;
      }
    }
    shared.full = static_cast<double>(full) / static_cast<double>(s.nonzeros);
    shared.mostly_full = static_cast<double>(mostly_full) / static_cast<double>(s.nonzeros);
  }
}

void set_lengths(const CompressedRows& m, RowStatistics& s) {
  const auto rows = static_cast<double>(m.rows());
  s.mean_length = static_cast<double>(s.nonzeros) / rows;
  s.shortest_row = m.columns();
  double squares = 0.0;
  for (int64_t row = 0; row < m.rows(); ++row) {
    const int64_t length = std::ssize(m.columns_of(row));
    s.shortest_row = std::min(s.shortest_row, length);
    s.longest_row = std::max(s.longest_row, length);
    s.empty_rows += length == 0 ? 1 : 0;
    const double off = static_cast<double>(length) - s.mean_length;
    squares += off * off;
  }
  s.length_deviation = std::sqrt(squares / rows);
}

}  // namespace

RowStatistics row_statistics(const CompressedRows& m, ThreadPool& threads) {
  RowStatistics s;
  s.nonzeros = m.nonzeros();
  if (s.nonzeros == 0) {
    s.empty_rows = m.rows();
    return s;
  }
  set_lengths(m, s);

  NonzeroCounts counts;
  std::mutex mutex;
  constexpr int64_t kGroups = 64;  // of 8 rows, at a time
  const int64_t groups = (m.rows() + kMostSharing - 1) / kMostSharing;
  threads.parallel_for(groups, kGroups, [&](int64_t begin, int64_t end) {
    NonzeroCounts of_range;
    for (int64_t group = begin; group < end; ++group) {
      count_masks(m, group * kMostSharing, of_range);
    }
    const int64_t end_row = std::min(end * kMostSharing, m.rows());
    for (int64_t row = begin * kMostSharing; row < end_row; ++row) {
      count_gaps(m.columns_of(row), of_range);
    }
    const std::lock_guard lock(mutex);
    counts.add(of_range);
  });
  set_shared(counts, s);
  if (counts.gaps > 0) {
    s.mean_gap = static_cast<double>(counts.gap_sum) / static_cast<double>(counts.gaps);
    s.long_gaps = static_cast<double>(counts.long_gaps) / static_cast<double>(counts.gaps);
  }
  s.bridges = counts.bridges;
  s.first_bridges = counts.first_bridges;
  return s;
}

}  // namespace sparsellm
