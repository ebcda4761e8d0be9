#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// A matrix [rows, columns] in host memory by its nonzeros, row after row (CSR): what stays of a
// matrix that as a dense one would not fit. It owns its arrays; the contents of a new one are
// undefined.
class CompressedRows {
 public:
  static constexpr int64_t kMaxSize = 0x7fffffff;  // of rows, and of columns

  // dtype: f16, bf16 or f32. Throws Error for sizes out of range and for more nonzeros than the
  // matrix has elements, OutOfMemory where there is not enough memory.
  CompressedRows(DType dtype, int64_t rows, int64_t columns, int64_t nonzeros);

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t nonzeros() const { return nonzeros_; }

  // [rows + 1]: row r has the nonzeros starts[r] to starts[r + 1] - 1. They begin with 0, do not
  // descend and end with nonzeros().
  std::span<int64_t> starts() { return {static_cast<int64_t*>(starts_.data()), start_count()}; }
  std::span<const int64_t> starts() const {
    return {static_cast<const int64_t*>(starts_.data()), start_count()};
  }

  // [nonzeros], strictly ascending in a row.
  std::span<uint32_t> column_indices() {
    return {static_cast<uint32_t*>(column_indices_.data()), static_cast<size_t>(nonzeros_)};
  }
  std::span<const uint32_t> column_indices() const {
    return {static_cast<const uint32_t*>(column_indices_.data()), static_cast<size_t>(nonzeros_)};
  }

  // [nonzeros]; T is the type of dtype(). They may hold anything, zeros too.
  template <class T>
  std::span<T> values() {
    require_type(DTypeOf<T>::value);
    return {static_cast<T*>(values_.data()), static_cast<size_t>(nonzeros_)};
  }
  template <class T>
  std::span<const T> values() const {
    require_type(DTypeOf<T>::value);
    return {static_cast<const T*>(values_.data()), static_cast<size_t>(nonzeros_)};
  }

  // Of one row.
  std::span<const uint32_t> columns_of(int64_t row) const {
    const Extent extent = extent_of(row);
    return column_indices().subspan(extent.begin, extent.count);
  }
  template <class T>
  std::span<const T> values_of(int64_t row) const {
    const Extent extent = extent_of(row);
    return values<T>().subspan(extent.begin, extent.count);
  }

 private:
  struct Extent {
    size_t begin;
    size_t count;
  };
  Extent extent_of(int64_t row) const {
    const int64_t* const start = starts().data() + row;
    return {static_cast<size_t>(start[0]), static_cast<size_t>(start[1] - start[0])};
  }
  size_t start_count() const { return static_cast<size_t>(rows_) + 1; }
  void require_type(DType dtype) const;

  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  int64_t nonzeros_;
  Buffer starts_;
  Buffer column_indices_;
  Buffer values_;
};

// Checks what a file or another program may have wrong: the starts and the columns. Throws Error
// that names the first row that is wrong. All that takes CompressedRows takes it for granted.
void validate(const CompressedRows& m, ThreadPool& threads);

// The elements of a matrix in host memory (f16, bf16 or f32) that are neither 0 nor -0; a NaN is
// one. The same whatever the number of threads.
CompressedRows compress_rows(const Tensor& w, ThreadPool& threads);

CompressedRows copy_of(const CompressedRows& m);
// The matrix with its values rounded to this dtype; those that become 0 stay.
CompressedRows with_dtype(CompressedRows m, DType dtype, ThreadPool& threads);

// The matrix [rows, columns], contiguous. Throws OutOfMemory where it does not fit.
OwnedTensor dense_matrix(const CompressedRows& m, ThreadPool& threads);

}  // namespace sparsellm
