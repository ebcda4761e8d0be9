#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "sparse/format.h"

namespace sparsellm {

// What the sparse formats share on the CPU. A format brings a
//   template <class T> class Walker {  // T: Half or BFloat16, and float if the format holds f32
//    public:
//     static constexpr int64_t kBlockRows;  // a multiple of 64
//     explicit Walker(const EncodedWeight& e);  // valid; outlives the walker
//     // f(row in the block, column, T value) for every nonzero of rows [block * kBlockRows, ...),
//     // in a fixed order; never outside of the matrix.
//     template <class F> void walk(int64_t block, F&& f) const;
//   };

// body(T{}) with the element type of a format that stores 16-bit values.
template <class Body>
void visit_half(DType dtype, Body&& body) {
  if (dtype == DType::f16) {
    body(Half{});
  } else {
    require(dtype == DType::bf16, "a sparse weight of {} values", name_of(dtype));
    body(BFloat16{});
  }
}

// Rows [rows.begin, rows.begin + rows.count) of the walker's matrix into dense, contiguous, of T.
template <class T, class W>
void expand_walked_rows(const W& walker, Range rows, const Tensor& dense, ThreadPool& threads) {
  const int64_t columns = dense.size(1);
  const int64_t first_block = rows.begin / W::kBlockRows;
  const int64_t end_row = rows.begin + rows.count;
  const int64_t blocks = (end_row + W::kBlockRows - 1) / W::kBlockRows - first_block;
  threads.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = first_block + begin; block < first_block + end; ++block) {
      const int64_t block_row = block * W::kBlockRows;
      const int64_t from = std::max(block_row, rows.begin);
      const int64_t to = std::min(block_row + W::kBlockRows, end_row);
      T* const out = dense.data<T>() - rows.begin * columns;
      std::memset(static_cast<void*>(out + from * columns), 0,
                  static_cast<size_t>((to - from) * columns) * sizeof(T));
      walker.walk(block, [&](int64_t row, int64_t column, T value) {
        const int64_t r = block_row + row;
        if (r >= from && r < to) {
          out[r * columns + column] = value;
        }
      });
    }
  });
}

// The same, in e's dtype.
template <template <class> class Walker>
void expand_rows(const EncodedWeight& e, Range rows, const Tensor& dense, ThreadPool& threads) {
  visit_half(e.dtype,
             [&]<class T>(T) { expand_walked_rows<T>(Walker<T>(e), rows, dense, threads); });
}

template <template <class> class Walker>
OwnedTensor decode_walk(const EncodedWeight& e, ThreadPool& threads) {
  OwnedTensor dense = allocate_tensor({}, e.dtype, {e.rows, e.columns}, "a decoded weight");
  if (dense.view.bytes() > 0) {
    expand_rows<Walker>(e, {.begin = 0, .count = e.rows}, dense.view, threads);
  }
  return dense;
}

}  // namespace sparsellm
