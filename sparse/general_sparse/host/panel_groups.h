#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "sparse/count_nonzeros.h"
#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/general_sparse/host/bank_order.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// A row group in a panel: where it has entries, and its elements.
template <class T>
struct PanelGroup {
  GroupBits bits;
  const T* elements = nullptr;  // of the first row, in the panel
  int64_t row_stride = 0;

  // What a row has in each of these columns, `stride` apart. -0 is a 0, and so is what rows have
  // that do not exist, and what has no column.
  void copy(int row, std::span<const int32_t> columns, T* to, int stride) const {
    const T* const of_row = elements + row * row_stride;
    for (size_t i = 0; i < columns.size(); ++i, to += stride) {
      const bool exists = row < bits.rows && columns[i] != kNoColumnOfPanel;
      const T element = exists ? of_row[columns[i]] : T{};
      *to = is_zero(element) ? T{} : element;
    }
  }
};

// The groups of a dense matrix.
template <class T>
class DenseGroups {
 public:
  DenseGroups(const Tensor& w, const RowBits& bits, int shared_rows)
      : w_(&w), bits_(&bits), shared_rows_(shared_rows) {}

  PanelGroup<T> operator()(const Chunk& chunk, int64_t group) {
    return {.bits = group_bits(*bits_, shared_rows_, chunk, group),
            .elements = w_->row<T>(group * shared_rows_) + chunk.first_column,
            .row_stride = w_->row_stride()};
  }

 private:
  const Tensor* w_;
  const RowBits* bits_;
  int shared_rows_;
};

// The groups of compressed rows. Each is valid until the next call. No value is a zero.
template <class T>
class CompressedGroups {
 public:
  CompressedGroups(const CompressedRows& m, int shared_rows) : m_(&m), shared_rows_(shared_rows) {}

  PanelGroup<T> operator()(const Chunk& chunk, int64_t group) {
    const int64_t words = ceil_div(chunk.columns, kBitsOfWord);
    const int64_t first_row = group * shared_rows_;
    const int64_t rows = std::min<int64_t>(shared_rows_, m_->rows() - first_row);
    words_.assign(static_cast<size_t>(words), 0);
    elements_.assign(static_cast<size_t>(rows * chunk.columns), T{});
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<const uint32_t> columns = m_->columns_of(first_row + row);
      const std::span<const T> values = m_->template values_of<T>(first_row + row);
      const auto first = std::ranges::lower_bound(columns, chunk.first_column);
      for (auto i = static_cast<size_t>(first - columns.begin());
           i < columns.size() && columns[i] < chunk.first_column + chunk.columns; ++i) {
        const int64_t column = columns[i] - chunk.first_column;
        words_[static_cast<size_t>(column / kBitsOfWord)] |= uint64_t{1} << column % kBitsOfWord;
        elements_[static_cast<size_t>(row * chunk.columns + column)] = values[i];
      }
    }
    return {.bits = {.first = words_.data(),
                     .row_words = 0,  // the bits of all rows
                     .rows = static_cast<int>(rows),
                     .words = static_cast<int>(words)},
            .elements = elements_.data(),
            .row_stride = chunk.columns};
  }

 private:
  const CompressedRows* m_;
  int shared_rows_;
  std::vector<uint64_t> words_;
  std::vector<T> elements_;
};

}  // namespace sparsellm::general_sparse
