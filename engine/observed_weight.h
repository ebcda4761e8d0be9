#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "sparse/weight_matrix.h"

namespace sparsellm {

// A weight on the CPU that keeps a record of its inputs: it adds the squares of the elements of x,
// column by column in double and in the order of the tokens, to `squares` [in], which outlives it,
// and leaves the rest to `weight`. The sums do not depend on the number of threads.
class ObservedWeight : public WeightMatrix {
 public:
  ObservedWeight(std::unique_ptr<WeightMatrix> weight, std::vector<double>& squares);

  std::string_view format() const override { return weight_->format(); }
  int64_t out() const override { return weight_->out(); }
  int64_t in() const override { return weight_->in(); }
  DType dtype() const override { return weight_->dtype(); }
  int64_t bytes() const override { return weight_->bytes(); }
  std::optional<int64_t> nonzeros() const override { return weight_->nonzeros(); }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  // The CPU has nothing to choose from.
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }

 private:
  std::unique_ptr<WeightMatrix> weight_;
  std::vector<double>* squares_;
};

}  // namespace sparsellm
