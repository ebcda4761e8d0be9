#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/general_sparse/cuda/device_encoding.h"
#include "sparse/general_sparse/cuda/product_plan.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::general_sparse {

// An encoding on a CUDA device. sparse/weight_tuning.cuh says what tuning needs of it.
class CudaGeneralWeight : public WeightMatrix {
 public:
  using Plan = ProductPlan;
  using Key = ProductKey;
  static constexpr int kTuningVersion = 3;
  static constexpr std::string_view kWithoutOverlap = ", pieces one after the other";

  // Buffers may not have their values yet.
  explicit CudaGeneralWeight(DeviceEncoding encoding);

  std::string_view format() const override { return kName; }
  int64_t out() const override { return encoding_.rows; }
  int64_t in() const override { return encoding_.columns; }
  DType dtype() const override { return encoding_.dtype; }
  int64_t bytes() const override { return encoding_.bytes(); }
  std::optional<int64_t> nonzeros() const override { return encoding_.nonzeros; }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const override;
  std::string notice() const override;
  std::unique_ptr<WeightMatrix> copy() const override;
  std::string plan_text(DType y, int64_t tokens, const ExecContext& ctx) const override;

  ProductKey key(DType y, int64_t tokens, Launches launches) const;
  // Whether pieces that overlap are a choice where the workspace is for this many tokens.
  bool overlaps_pieces(int64_t max_tokens) const;
  ProductPlan rule_plan(DType y, int64_t tokens) const;  // where nothing was measured
  std::vector<ProductPlan> candidates(
      const PlannedProduct& product, const std::function<bool(const ProductPlan&)>& fits_all) const;
  std::string text_of(const ProductPlan& plan) const { return to_text(plan); }
  std::optional<ProductPlan> plan_from(std::string_view text, int64_t tokens) const {
    return product_plan_from(text, kernels_, out(), in(), tokens);
  }
  // Of matmul(): the tuned one if it fits, else the rule's.
  ProductPlan plan_for(DType y, int64_t tokens, const ExecContext& ctx) const;
  bool fits(const ProductPlan& plan, DType y, int64_t tokens) const;
  // matmul() of checked operands by a plan for their number and dtypes that fits.
  void run(const ProductPlan& plan, const Tensor& x, const Tensor& y, const Epilogue& epilogue,
           ExecContext& ctx) const;

 private:
  ProductPlan plan_for_any_tokens(DType y) const;
  void multiply_slices(const SliceConfig& config, const Tensor& x, const Tensor& y,
                       const void* bias, bool relu, ExecContext& ctx) const;

  DeviceEncoding encoding_;
  ProductKernels kernels_;  // for that
  int64_t percent_;         // of nonzeros, as keys have it
};

}  // namespace sparsellm::general_sparse
