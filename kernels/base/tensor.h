#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

namespace sparsellm {

// A view of a row-major array of at most four dimensions; it owns nothing and, like a span, a const
// Tensor still allows writing to the elements. Consecutive indices of the first dimension are
// `row_stride` elements apart (a slice of columns has a stride larger than its row); everything
// below the first dimension is contiguous.
class Tensor {
 public:
  static constexpr int kMaxRank = 4;

  Tensor() = default;

  Tensor(void* data, DType dtype, std::initializer_list<int64_t> sizes, Device device)
      : data_(data), dtype_(dtype), device_(device) {
    require(sizes.size() >= 1 && sizes.size() <= kMaxRank, "a tensor has 1 to 4 dimensions, not {}",
            sizes.size());
    for (int64_t size : sizes) {
      require(size >= 0, "a tensor has a negative size {}", size);
      sizes_[rank_++] = size;
    }
    int64_t bytes = size_of(dtype);
    for (int64_t size : sizes) {  // with zeros among the sizes the others may be anything
      bytes = checked_mul(bytes, std::max<int64_t>(size, 1), "bytes of a tensor");
    }
    row_stride_ = row_size();
  }

  bool empty() const { return data_ == nullptr; }
  int rank() const { return rank_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int64_t size(int dimension) const {
    assert(dimension < rank_);
    return sizes_[dimension];
  }
  int64_t row_stride() const { return row_stride_; }

  // Elements of one row: the product of all sizes below the first dimension.
  int64_t row_size() const {
    int64_t product = 1;
    for (int i = 1; i < rank_; ++i) {
      product *= sizes_[i];
    }
    return product;
  }
  int64_t element_count() const { return rank_ == 0 ? 0 : sizes_[0] * row_size(); }
  int64_t bytes() const { return element_count() * size_of(dtype_); }
  bool contiguous() const { return row_stride_ == row_size() || sizes_[0] <= 1; }

  void* raw() const { return data_; }

  template <class T>
  T* data() const {
    require(DTypeOf<T>::value == dtype_, "a tensor of dtype {} is used as {}", name_of(dtype_),
            name_of(DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }
  template <class T>
  T* row(int64_t index) const {
    assert(index >= 0 && index < sizes_[0]);
    return data<T>() + index * row_stride_;
  }

  // Rows [begin, begin + count), the same memory.
  Tensor rows(int64_t begin, int64_t count) const {
    require(begin >= 0 && count >= 0 && count <= sizes_[0] - begin,
            "{} rows from row {} of a tensor with {} rows", count, begin, sizes_[0]);
    Tensor slice = *this;
    slice.data_ = offset(begin * row_stride_);
    slice.sizes_[0] = count;
    return slice;
  }

  // Columns [begin, begin + count) of a matrix, the same memory.
  Tensor columns(int64_t begin, int64_t count) const {
    if (rank_ != 2 || begin < 0 || count < 0 || count > sizes_[1] - begin) {
      fail("{} columns from column {} of a tensor {}", count, begin, shape_string());
    }
    Tensor slice = *this;
    slice.data_ = offset(begin);
    slice.sizes_[1] = count;
    return slice;
  }

  // "[3, 256]", for messages.
  std::string shape_string() const {
    std::string text = "[";
    for (int i = 0; i < rank_; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(sizes_[i]);
    }
    return text + "]";
  }

 private:
  void* offset(int64_t elements) const {
    return static_cast<std::byte*>(data_) + elements * size_of(dtype_);
  }

  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> sizes_{};
  int64_t row_stride_ = 0;
  Device device_;
};

}  // namespace sparsellm
