#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "sparse/encoded_weight.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/layout_options.h"
#include "sparse/matrices/compressed_rows.h"
#include "sparse/matrices/row_statistics.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// What general_sparse::encode() should make of a matrix, by nested loops over its elements that
// append to each array what comes next, as the description of the layout has it.
EncodedWeight naive_encoding(const Tensor& w, const general_sparse::Layout& layout);

// The layout that the rule chooses for a matrix without zeros among its values.
general_sparse::Layout layout_by_rule(const CompressedRows& m, const RowStatistics& statistics,
                                      LayoutFor goal, ThreadPool& threads);

// Valid layouts: all combinations of few values for each field.
std::vector<general_sparse::Layout> layout_grid();

struct NamedMatrix {
  std::string name;
  OwnedTensor w;
};
// Zeros, and ones where is_nonzero(row, column) says so.
template <class IsNonzero>
OwnedTensor ones_matrix(DType dtype, int64_t rows, int64_t columns, IsNonzero&& is_nonzero) {
  OwnedTensor w = allocate_tensor({}, dtype, {rows, columns}, "a matrix of a test");
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        w.view.row<T>(row)[column] = from_float<T>(is_nonzero(row, column) ? 1.0f : 0.0f);
      }
    }
  });
  return w;
}
// Uniform zeros; among the values are subnormals, infinities, NaN and, in the place of zeros, -0.
OwnedTensor special_matrix(DType dtype, int64_t rows, int64_t columns, double density,
                           Random& random);
// Small ones of odd sizes, full and empty ones, rows and columns, long gaps, and one of each class.
std::vector<NamedMatrix> small_matrices(DType dtype, ThreadPool& threads);

}  // namespace sparsellm::testing
