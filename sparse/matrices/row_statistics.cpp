#include "sparse/matrices/row_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <span>
#include <vector>

namespace sparsellm {
namespace {

constexpr int64_t kMostSharing = 8;  // rows

// What is counted of the nonzeros. Whole numbers: their sums are the same in every order.
struct NonzeroCounts {
  std::array<int64_t, 3> blocks{};  // of 2, 4 and 8 rows that have a nonzero
  int64_t gaps = 0;
  int64_t gap_sum = 0;
  int64_t bridges = 0;
  int64_t first_bridges = 0;

  void add(const NonzeroCounts& other) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] += other.blocks[i];
    }
    gaps += other.gaps;
    gap_sum += other.gap_sum;
    bridges += other.bridges;
    first_bridges += other.first_bridges;
  }
};

void count_gaps(std::span<const uint32_t> columns, NonzeroCounts& counts) {
  if (columns.empty()) {
    return;
  }
  constexpr auto kLongGap = static_cast<uint32_t>(RowStatistics::kLongGap);
  uint32_t bridges = 0;  // fewer than columns: vectors of 32 bits hold them
  for (size_t i = 1; i < columns.size(); ++i) {
    bridges += (columns[i] - columns[i - 1] - 1) / kLongGap;
  }
  counts.bridges += bridges;
  counts.gaps += std::ssize(columns) - 1;
  counts.gap_sum += columns.back() - columns.front();
  counts.first_bridges += columns.front() / kLongGap;
}

// 1 if a <= b, else 0. A comparison would compile to a branch, which is often mispredicted.
size_t is_at_most(uint32_t a, uint32_t b) {
  return static_cast<uint64_t>(int64_t{a} - int64_t{b} - 1) >> 63;
}

// The union of two ascending lists of columns, column by column. A step waits for the one before,
// and takes the time of several that do not.
class Union {
 public:
  // Writes to `out`, which has room for both.
  Union(std::span<const uint32_t> a, std::span<const uint32_t> b, uint32_t* out)
      : a_(a.data()),
        a_end_(a.data() + a.size()),
        b_(b.data()),
        b_end_(b.data() + b.size()),
        begin_(out),
        end_(out) {}

  bool has_both() const { return a_ != a_end_ && b_ != b_end_; }
  // While it has.
  void step() {
    const uint32_t a = *a_;
    const uint32_t b = *b_;
    *end_++ = std::min(a, b);
    a_ += is_at_most(a, b);
    b_ += is_at_most(b, a);
  }
  void finish() {
    while (has_both()) {
      step();
    }
    end_ = std::copy(a_, a_end_, end_);
    end_ = std::copy(b_, b_end_, end_);
  }
  std::span<const uint32_t> columns() const { return {begin_, end_}; }

 private:
  const uint32_t* a_;
  const uint32_t* a_end_;
  const uint32_t* b_;
  const uint32_t* b_end_;
  uint32_t* begin_;
  uint32_t* end_;
};

// By turns, as long as all have two lists. Copies, which nothing else refers to, stay in registers.
template <class... Unions>
void finish_by_turns(Unions&... unions) {
  [&](Unions... copies) {
    while ((copies.has_both() && ...)) {
      (copies.step(), ...);
    }
    (copies.finish(), ...);
    ((unions = copies), ...);
  }(unions...);
}

// Counts blocks of rows: the columns of 8 rows are united by pairs, those of pairs, and so on.
class BlockCounter {
 public:
  // Of up to 8 rows from first_row on.
  void count(const CompressedRows& m, int64_t first_row, NonzeroCounts& counts) {
    std::array<std::span<const uint32_t>, kMostSharing> rows{};
    size_t nonzeros = 0;
    for (int64_t row = first_row; row < std::min(first_row + kMostSharing, m.rows()); ++row) {
      std::span<const uint32_t>& columns = rows[static_cast<size_t>(row - first_row)];
      columns = m.columns_of(row);
      nonzeros += columns.size();
    }
    if (of_pairs_.size() < nonzeros) {
      of_pairs_.resize(nonzeros);
      of_quads_.resize(nonzeros);
    }
    uint32_t* out = of_pairs_.data();
    const auto unite_rows = [&](size_t first) {
      const Union pair(rows[first], rows[first + 1], out);
      out += rows[first].size() + rows[first + 1].size();
      return pair;
    };
    Union pair0 = unite_rows(0);
    Union pair1 = unite_rows(2);
    Union pair2 = unite_rows(4);
    Union pair3 = unite_rows(6);
    finish_by_turns(pair0, pair1, pair2, pair3);
    Union quad0(pair0.columns(), pair1.columns(), of_quads_.data());
    Union quad1(pair2.columns(), pair3.columns(),
                of_quads_.data() + pair0.columns().size() + pair1.columns().size());
    finish_by_turns(quad0, quad1);
    for (const Union* pair : {&pair0, &pair1, &pair2, &pair3}) {
      counts.blocks[0] += std::ssize(pair->columns());
    }
    counts.blocks[1] += std::ssize(quad0.columns()) + std::ssize(quad1.columns());
    counts.blocks[2] += count_united(quad0.columns(), quad1.columns());
  }

 private:
  // In two halves, below a column and from it on. The columns of pairs are needed no more.
  int64_t count_united(std::span<const uint32_t> a, std::span<const uint32_t> b) {
    const size_t a_half = a.size() / 2;
    const size_t b_half =
        a.empty() ? 0 : static_cast<size_t>(std::ranges::lower_bound(b, a[a_half]) - b.begin());
    Union below(a.first(a_half), b.first(b_half), of_pairs_.data());
    Union above(a.subspan(a_half), b.subspan(b_half), of_pairs_.data() + a_half + b_half);
    finish_by_turns(below, above);
    return std::ssize(below.columns()) + std::ssize(above.columns());
  }

  std::vector<uint32_t> of_pairs_;
  std::vector<uint32_t> of_quads_;
};

void set_lengths(const CompressedRows& m, RowStatistics& s) {
  const auto rows = static_cast<double>(m.rows());
  s.mean_length = static_cast<double>(s.nonzeros) / rows;
  double squares = 0.0;
  for (int64_t row = 0; row < m.rows(); ++row) {
    const double off = static_cast<double>(std::ssize(m.columns_of(row))) - s.mean_length;
    squares += off * off;
  }
  s.length_deviation = std::sqrt(squares / rows);
}

}  // namespace

RowStatistics row_statistics(const CompressedRows& m, ThreadPool& threads) {
  RowStatistics s;
  s.nonzeros = m.nonzeros();
  if (s.nonzeros == 0) {
    return s;
  }
  set_lengths(m, s);

  NonzeroCounts counts;
  std::mutex mutex;
  constexpr int64_t kGroups = 64;  // of 8 rows, at a time
  const int64_t groups = (m.rows() + kMostSharing - 1) / kMostSharing;
  threads.parallel_for(groups, kGroups, [&](int64_t begin, int64_t end) {
    NonzeroCounts of_range;
    BlockCounter blocks;
    for (int64_t group = begin; group < end; ++group) {
      blocks.count(m, group * kMostSharing, of_range);
    }
    const int64_t end_row = std::min(end * kMostSharing, m.rows());
    for (int64_t row = begin * kMostSharing; row < end_row; ++row) {
      count_gaps(m.columns_of(row), of_range);
    }
    const std::lock_guard lock(mutex);
    counts.add(of_range);
  });
  for (size_t i = 0; i < counts.blocks.size(); ++i) {
    s.shared[i].blocks = counts.blocks[i];
  }
  if (counts.gaps > 0) {
    s.mean_gap = static_cast<double>(counts.gap_sum) / static_cast<double>(counts.gaps);
  }
  s.bridges = counts.bridges;
  s.first_bridges = counts.first_bridges;
  return s;
}

}  // namespace sparsellm
