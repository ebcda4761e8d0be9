#pragma once

#include "kernels/base/buffer.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// A dense weight that is stored as its transpose, so that one of its columns is contiguous: of a
// down projection those are the weights of one neuron. Its products are gemm_transposed()'s.
class TransposedWeight : public WeightMatrix {
 public:
  explicit TransposedWeight(OwnedTensor transpose);  // [in, out]
  // A view of memory that outlives this object.
  explicit TransposedWeight(const Tensor& transpose);

  std::string_view format() const override { return "dense"; }
  int64_t out() const override { return transpose_.view.size(1); }
  int64_t in() const override { return transpose_.view.size(0); }
  DType dtype() const override { return transpose_.view.dtype(); }
  int64_t bytes() const override { return transpose_.view.bytes(); }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const override;
  std::unique_ptr<WeightMatrix> copy() const override;

 private:
  OwnedTensor transpose_;
};

}  // namespace sparsellm
