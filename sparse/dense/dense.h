#pragma once

#include "kernels/base/buffer.h"
#include "sparse/format.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// The format without any compression: all values, row-major, in the checkpoint's dtype.
class DenseWeight : public WeightMatrix {
 public:
  explicit DenseWeight(OwnedTensor weight);
  // A view of memory that outlives this object, as for an output projection tied to the embedding.
  explicit DenseWeight(const Tensor& weight);

  std::string_view format() const override { return "dense"; }
  int64_t out() const override { return weight_.view.size(0); }
  int64_t in() const override { return weight_.view.size(1); }
  DType dtype() const override { return weight_.view.dtype(); }
  int64_t bytes() const override { return weight_.view.bytes(); }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const override;
  std::unique_ptr<WeightMatrix> copy() const override;

 private:
  OwnedTensor weight_;
};

// Its encoding has one part, "values", which is the matrix. What it says of nonzeros is not
// checked: nothing depends on it.
const WeightFormat& dense_format();

}  // namespace sparsellm
