#include <utility>
#include <variant>

#include "kernels/base/error.h"
#include "sparse/tca_bme/ablation/ablation.h"
#include "sparse/tca_bme/ablation/ablation_kernels.cuh"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

constexpr AblationVariant kVariants[] = {
    // In the order of Ablation.
    {"ours", true},
    {"two-phase popcount decode", true},
    {"no decode: stream and multiply", false},
    {"stream only", false},
    {"one pipeline stage", true},
};

class RecordProduct : public AblatedProduct {
 public:
  struct Parts {
    Ablation ablation;
    std::vector<RecordMatrix> copies;
    RecordMatmulConfig config;
    Tensor x;
    Tensor y;
  };
  explicit RecordProduct(Parts parts) : parts_(std::move(parts)) {}

  std::string configuration() const override { return record_matmul_name(parts_.config); }
  void enqueue(int64_t copy, const ExecContext& ctx) override {
    const auto& [ablation, copies, config, x, y] = parts_;
    const RecordMatrix& matrix = copies[static_cast<size_t>(copy)];
    auto scratch = ctx.workspace.scope();
    const int64_t words = (record_matmul_workspace_bytes(matrix, x.size(0)) + 3) / 4;
    const CudaProductOperands operands{.x = x.raw(),
                                       .x_stride = x.row_stride(),
                                       .y = y.raw(),
                                       .y_stride = y.row_stride(),
                                       .tokens = x.size(0),
                                       .dtype = x.dtype(),
                                       .workspace = scratch.tensor(DType::f32, {words}).raw()};
    if (ablation == Ablation::none || ablation == Ablation::one_stage) {
      record_matmul_cuda(matrix, operands, config, ctx);
    } else {
      record_matmul_by({.even = ablation_kernels(ablation)}, matrix, operands, config, ctx);
    }
  }

 private:
  Parts parts_;
};

class RecordAblation : public AblatedWeight {
 public:
  RecordAblation(const Tensor& w, std::vector<const WeightMatrix*> copies) : weight_(w) {
    require(w.dtype() == DType::f16, "the stages of a kernel are erased in f16, not in {}",
            name_of(w.dtype()));
    require(!copies.empty(), "an ablation without a weight");
    for (const WeightMatrix* copy : copies) {
      const auto* const records = dynamic_cast<const CudaRecordWeight*>(copy);
      require(records != nullptr, "the kernel of {} has stages to erase, not that of {}", kName,
              copy->format());
      copies_.push_back(records);
    }
  }

  std::span<const AblationVariant> variants() const override { return kVariants; }
  int64_t copies() const override { return std::ssize(copies_); }
  int64_t bytes(size_t variant) const override {
    return static_cast<Ablation>(variant) == Ablation::paper_decode && !as_paper_.empty()
               ? as_paper_.front().starts.bytes() + as_paper_.front().records.bytes()
               : copies_.front()->bytes();
  }

  std::unique_ptr<AblatedProduct> bind(size_t variant, const Tensor& x, const Tensor& y,
                                       ExecContext& ctx) override {
    const auto ablation = static_cast<Ablation>(variant);
    return std::make_unique<RecordProduct>(
        RecordProduct::Parts{.ablation = ablation,
                             .copies = matrices(ablation, ctx),
                             .config = config_for(ablation, x.size(0), ctx),
                             .x = x,
                             .y = y});
  }

 private:
  RecordMatmulConfig config_for(Ablation ablation, int64_t tokens, const ExecContext& ctx) const {
    const CudaRecordWeight& first = *copies_.front();
    const RecordPlan plan = first.plan_for(weight_.dtype(), tokens, ctx);
    const auto* const chosen = std::get_if<RecordMatmulConfig>(&plan);
    RecordMatmulConfig config;
    if (chosen != nullptr) {
      config = *chosen;
    } else {
      const std::vector<RecordMatmulConfig> candidates =
          record_matmul_candidates(first.matrix(), tokens);
      require(!candidates.empty(), "this GPU does not run the kernel of {}", kName);
      config = candidates.front();
    }
    if (ablation == Ablation::one_stage) {
      config.stages = 1;
    }
    return config;
  }

  // Of all copies.
  std::vector<RecordMatrix> matrices(Ablation ablation, ExecContext& ctx) {
    std::vector<RecordMatrix> all;
    for (const CudaRecordWeight* copy : copies_) {
      all.push_back(copy->matrix());
      if (ablation == Ablation::paper_decode) {
        take_from_paper(all.back(), all.size() - 1, ctx);
      }
    }
    return all;
  }

  void take_from_paper(RecordMatrix& matrix, size_t copy, ExecContext& ctx) {
    if (as_paper_.size() == copy) {
      as_paper_.push_back(encode_records_as_paper(weight_, matrix.chunks, ctx));
    }
    const DeviceRecords& records = as_paper_[copy];
    matrix.records = static_cast<const uint8_t*>(records.records.data());
    matrix.starts = static_cast<const uint32_t*>(records.starts.data());
    matrix.largest_record = records.sizes.largest;
    matrix.common_record = records.sizes.common;
    matrix.pair = false;
  }

  Tensor weight_;
  std::vector<const CudaRecordWeight*> copies_;
  std::vector<DeviceRecords> as_paper_;  // as many as there are copies, or none yet
};

}  // namespace

std::unique_ptr<AblatedWeight> ablate(const Tensor& w, std::vector<const WeightMatrix*> copies) {
  return std::make_unique<RecordAblation>(w, std::move(copies));
}

}  // namespace sparsellm::tca_bme
