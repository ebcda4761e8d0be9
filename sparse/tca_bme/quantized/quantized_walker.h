#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "sparse/encoded_weight.h"
#include "sparse/quantize/quantized_matrix.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::tca_bme {

// The nonzeros of a block of 64 rows, for sparse/cpu/walk.h, as dequantize() rounds them, which may
// be to 0; row by row, from left to right.
template <class T>
class QuantizedWalker {
 public:
  static constexpr int64_t kBlockRows = kRecordRows;

  explicit QuantizedWalker(const EncodedWeight& e) : parts_(e) {}

  template <class F>
  void walk(int64_t block, F&& f) const {
    const int64_t first = block * kBlockRows;
    const Range rows{.begin = first, .count = std::min(kBlockRows, parts_.rows - first)};
    ThreadPool caller(1);
    const QuantizedMatrix q = quantized_rows(parts_, rows, caller);
    const OwnedTensor values = dequantized_codes(q, DTypeOf<T>::value, caller);
    const int64_t mask = values.view.size(1) - 1;
    for (int64_t row = 0; row < q.rows; ++row) {
      const int8_t* const codes = q.codes.data() + row * q.columns;
      for (int64_t group = 0; group < q.groups(); ++group) {
        const T* const of_group = values.view.template row<T>(row * q.groups() + group);
        const int64_t end = std::min(q.columns, (group + 1) * q.group);
        for (int64_t column = group * q.group; column < end; ++column) {
          if (codes[column] != 0) {
            f(row, column, of_group[codes[column] & mask]);
          }
        }
      }
    }
  }

 private:
  QuantizedParts parts_;
};

}  // namespace sparsellm::tca_bme
