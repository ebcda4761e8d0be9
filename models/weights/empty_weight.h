#pragma once

#include <cstdint>
#include <string_view>

#include "sparse/weight_matrix.h"

namespace sparsellm {

// A weight without rows or without columns: what a rank has of one that is too small to be shared
// by all. Its products are zeros, which change no sum over the ranks.
class EmptyWeight : public WeightMatrix {
 public:
  EmptyWeight(int64_t out, int64_t in, DType dtype);  // one of out and in is 0

  std::string_view format() const override { return "dense"; }
  int64_t out() const override { return out_; }
  int64_t in() const override { return in_; }
  DType dtype() const override { return dtype_; }
  int64_t bytes() const override { return 0; }
  // x may be empty; y is contiguous. Throws Error for a bias, and for an activation that does not
  // leave zeros as they are.
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range, Tensor, ExecContext&) const override {}
  int64_t workspace_bytes(int64_t, Sums) const override { return 0; }
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }

 private:
  int64_t out_;
  int64_t in_;
  DType dtype_;
};

}  // namespace sparsellm
