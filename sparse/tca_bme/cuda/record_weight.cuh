#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/tca_bme/cuda/record_encode_cuda.h"
#include "sparse/tca_bme/cuda/record_plan.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/quantized/cuda/quantized_encode_cuda.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tca_bme {

// A weight of version 2 or 3 on a CUDA device. sparse/weight_tuning.cuh says what tuning needs of
// it.
class CudaRecordWeight : public WeightMatrix {
 public:
  using Plan = RecordPlan;
  using Key = RecordKey;
  static constexpr int kTuningVersion = 17;
  static constexpr std::string_view kWithoutOverlap = ", not expanded";

  // The records may not have their values yet.
  CudaRecordWeight(DeviceRecords parts, DType dtype, int64_t rows, int64_t columns);
  CudaRecordWeight(DeviceQuantized parts, DType dtype, int64_t rows, int64_t columns);

  std::string_view format() const override;
  int64_t out() const override { return matrix_.rows; }
  int64_t in() const override { return matrix_.columns; }
  DType dtype() const override { return dtype_; }
  int64_t bytes() const override { return starts_.bytes() + records_.bytes() + scales_.bytes(); }
  std::optional<int64_t> nonzeros() const override { return nonzeros_; }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const override;
  std::string notice() const override;
  std::unique_ptr<WeightMatrix> copy() const override;
  double input_rounding(DType y, int64_t tokens, const ExecContext& ctx) const override;
  std::string plan_text(DType y, int64_t tokens, const ExecContext& ctx) const override;

  const RecordMatrix& matrix() const { return matrix_; }
  RecordKey key(DType y, int64_t tokens, Launches launches) const;
  // Whether pieces that overlap are a choice where the workspace is for this many tokens.
  bool overlaps_pieces(int64_t max_tokens) const;
  RecordPlan rule_plan(DType y, int64_t tokens) const;  // where nothing was measured
  std::vector<RecordPlan> candidates(const PlannedProduct& product,
                                     const std::function<bool(const RecordPlan&)>& fits_all) const;
  std::string text_of(const RecordPlan& plan) const { return to_text(plan); }
  std::optional<RecordPlan> plan_from(std::string_view text, int64_t tokens) const {
    return tca_bme::plan_from(text, matrix_, tokens);
  }
  // The configurations for decoding records, the best guess first; none for a product that they are
  // not decoded for, and of the second kind for one of few tokens, or of an x that, contiguous, has
  // no aligned rows.
  std::vector<RecordMatmulConfig> configs_for(DType y, int64_t tokens) const;
  std::vector<RecordWgmmaConfig> wgmma_configs_for(DType y, int64_t tokens) const;
  // Of matmul(): the tuned one if it fits, else the rule's.
  RecordPlan plan_for(DType y, int64_t tokens, const ExecContext& ctx) const;
  // Whether there is room for the records in products by the plan.
  bool fits(const RecordPlan& plan, DType y, int64_t tokens) const;
  // matmul() of checked operands by a plan for their number and dtypes that fits. Where x is not
  // what warpgroups take, the rule's other choice takes its place.
  void run(const RecordPlan& plan, const Tensor& x, const Tensor& y, const Epilogue& epilogue,
           ExecContext& ctx) const;

 private:
  CudaRecordWeight(const CudaRecordWeight& other);  // with memory of its own

  void complete(const RecordSizes& sizes);
  void point_to_own_memory();
  RecordPlan rule_plan_for_any_x(DType y, int64_t tokens) const;  // not by warpgroups
  Expansion rule_expansion(int64_t tokens) const;
  void decode(const RecordMatmulConfig& config, CudaProductOperands operands,
              ExecContext& ctx) const;

  DType dtype_;
  Buffer starts_;
  Buffer records_;
  Buffer scales_;
  RecordShares shares_;
  RecordMatrix matrix_;  // of these
  int64_t nonzeros_;
  int64_t percent_;  // of nonzeros, as keys have it
};

}  // namespace sparsellm::tca_bme
