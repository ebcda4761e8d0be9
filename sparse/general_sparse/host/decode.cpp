#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "sparse/cpu/walk.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/walker.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kBlocksPerRange = 4;

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

// f(block) for each block of a walk.
template <class T, class F>
void for_each_block(int64_t rows, ThreadPool& threads, F&& f) {
  threads.parallel_for(ceil_div(rows, Walker<T>::kBlockRows), kBlocksPerRange,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t block = begin; block < end; ++block) {
                           f(block);
                         }
                       });
}

template <class T>
void fill_starts(const Walker<T>& walker, ThreadPool& threads, CompressedRows& m) {
  std::ranges::fill(m.starts(), 0);
  for_each_block<T>(m.rows(), threads, [&](int64_t block) {
    int64_t* const counts = m.starts().data() + block * Walker<T>::kBlockRows + 1;
    walker.walk(block, [&](int64_t row, int64_t, T) { ++counts[row]; });
  });
  std::partial_sum(m.starts().begin(), m.starts().end(), m.starts().begin());
}

template <class T>
void fill_rows(const Walker<T>& walker, ThreadPool& threads, CompressedRows& m) {
  const std::span<const int64_t> starts = std::as_const(m).starts();
  for_each_block<T>(m.rows(), threads, [&](int64_t block) {
    const int64_t first_row = block * Walker<T>::kBlockRows;
    const int64_t rows = std::min(Walker<T>::kBlockRows, m.rows() - first_row);
    std::array<int64_t, Walker<T>::kBlockRows> next{};
    std::copy_n(starts.begin() + first_row, rows, next.begin());
    walker.walk(block, [&](int64_t row, int64_t column, T value) {
      const auto i = static_cast<size_t>(next[static_cast<size_t>(row)]++);
      m.column_indices()[i] = static_cast<uint32_t>(column);
      m.values<T>()[i] = value;
    });
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      const auto begin = static_cast<size_t>(starts[static_cast<size_t>(row)]);
      const auto count = static_cast<size_t>(starts[static_cast<size_t>(row) + 1]) - begin;
      const std::span<uint32_t> columns = m.column_indices().subspan(begin, count);
      if (!std::ranges::is_sorted(columns)) {
        sort_row(columns, m.values<T>().subspan(begin, count));
      }
    }
  });
}

}  // namespace

OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) {
  OwnedTensor dense = allocate_tensor({}, e.dtype, {e.rows, e.columns}, "a decoded weight");
  if (dense.view.bytes() > 0) {
    visit_float(e.dtype, [&]<class T>(T) {
      expand_walked_rows<T>(Walker<T>(e), {.begin = 0, .count = e.rows}, dense.view, threads);
    });
  }
  return dense;
}

CompressedRows to_compressed_rows(const EncodedWeight& e, ThreadPool& threads) {
  CompressedRows m(e.dtype, e.rows, e.columns, e.nonzeros);
  visit_float(e.dtype, [&]<class T>(T) {
    const Walker<T> walker(e);
    fill_starts(walker, threads, m);
    fill_rows(walker, threads, m);
  });
  return m;
}

}  // namespace sparsellm::general_sparse
