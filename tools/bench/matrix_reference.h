#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/parallel.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm {

// C = A * B in double over the nonzeros of A, and how far a result may be from it: as
// tools/bench/verify_product.h has it for dense products, with sum |a||b| over the nonzeros of a
// row. Of matrices of more than kAllRows rows the elements of some rows alone are compared: the
// first, the last, the longest, and kSampledRows that are drawn at random. That it is finite is
// asked of every element.
class MatrixReference {
 public:
  static constexpr int64_t kAllRows = 1 << 14;
  static constexpr int64_t kSampledRows = 1 << 13;

  // b [K, most columns], contiguous, in host memory, of any floating dtype.
  MatrixReference(const CompressedRows& a, const Tensor& b, uint64_t seed, ThreadPool& threads);

  // The largest error of c = A times the first columns of B, in units of the tolerance: at most 1
  // if c is right, infinity if any element is NaN or infinite. c is contiguous, in this order, on
  // the context's device, for which it waits.
  double worst_error(const Tensor& c, general_sparse::Order order, ExecContext& ctx,
                     ThreadPool& threads);

  int64_t compared_rows() const { return static_cast<int64_t>(rows_.size()); }

 private:
  int64_t all_rows_;
  int64_t columns_;                 // of B
  std::vector<int64_t> rows_;       // that are compared, ascending
  std::vector<double> values_;      // [rows_, columns_]
  std::vector<double> magnitudes_;  // [rows_, columns_]: sum |a||b|
  Buffer host_;                     // C of a CUDA device
};

}  // namespace sparsellm
