#pragma once

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {

// Where the nonzeros of a dense matrix in host memory are, a bit for each element, so that the
// matrix is read once for all layouts that are tried, and once more for its values.
class NonzeroBits {
 public:
  // f16, bf16 or f32.
  NonzeroBits(const Tensor& w, ThreadPool& threads);

  const RowBits& rows() const { return rows_; }

  // What choose_layout() reads of row_statistics(); the other fields are 0.
  RowStatistics statistics(ThreadPool& threads) const;

 private:
  Buffer words_;
  RowBits rows_;
};

}  // namespace sparsellm::general_sparse
