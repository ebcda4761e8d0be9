#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/tiled_csl/cuda/tile_encode_cuda.h"
#include "sparse/tiled_csl/cuda/tile_plan.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tiled_csl {

// A weight of version 2 on a CUDA device. sparse/weight_tuning.cuh says what tuning needs of it.
class CudaTileWeight : public WeightMatrix {
 public:
  using Plan = TilePlan;
  using Key = TileKey;
  static constexpr int kTuningVersion = 2;
  static constexpr std::string_view kWithoutOverlap = ", pieces one after the other";

  // The records may not have their values yet.
  CudaTileWeight(DeviceTiles parts, DType dtype, int64_t rows, int64_t columns);

  std::string_view format() const override;
  int64_t out() const override { return matrix_.rows; }
  int64_t in() const override { return matrix_.columns; }
  DType dtype() const override { return dtype_; }
  int64_t bytes() const override { return parts_.starts.bytes() + parts_.records.bytes(); }
  std::optional<int64_t> nonzeros() const override { return parts_.nonzeros; }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const override;
  std::string notice() const override;
  std::unique_ptr<WeightMatrix> copy() const override;
  std::string plan_text(DType y, int64_t tokens, const ExecContext& ctx) const override;

  TileKey key(DType y, int64_t tokens, Launches launches) const;
  // Whether pieces that overlap are a choice where the workspace is for this many tokens.
  bool overlaps_pieces(int64_t max_tokens) const;
  TilePlan rule_plan(DType y, int64_t tokens) const;  // where nothing was measured
  std::vector<TilePlan> candidates(const PlannedProduct& product,
                                   const std::function<bool(const TilePlan&)>& fits_all) const;
  std::string text_of(const TilePlan& plan) const { return to_text(plan); }
  std::optional<TilePlan> plan_from(std::string_view text, int64_t tokens) const {
    return tiled_csl::plan_from(text, matrix_, tokens);
  }
  // Of matmul(): the tuned one if it fits, else the rule's.
  TilePlan plan_for(DType y, int64_t tokens, const ExecContext& ctx) const;
  // Whether there is room for the records in products by the plan.
  bool fits(const TilePlan& plan, DType y, int64_t tokens) const;
  // matmul() of checked operands by a plan for their number and dtypes that fits.
  void run(const TilePlan& plan, const Tensor& x, const Tensor& y, const Epilogue& epilogue,
           ExecContext& ctx) const;

 private:
  DType dtype_;
  DeviceTiles parts_;
  TileMatrix matrix_;  // of these
  int64_t percent_;    // of nonzeros, as keys have it
  int tiles_;          // likewise
};

}  // namespace sparsellm::tiled_csl
