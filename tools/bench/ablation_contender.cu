#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "tools/bench/ablation_contender.h"
#include "tools/bench/ablation_kernels.cuh"
#include "tools/bench/format_contender.h"

namespace sparsellm {
namespace {

using tca_bme::CudaRecordWeight;
using tca_bme::DeviceRecords;
using tca_bme::RecordPlan;

class AblationKernel : public BoundKernel {
 public:
  struct Product {
    Ablation ablation;
    std::vector<RecordMatrix> copies;
    RecordMatmulConfig config;
    Tensor x;
    Tensor y;
  };
  AblationKernel(Product product, ExecContext& ctx) : product_(std::move(product)), ctx_(ctx) {}

  std::string algorithm(Launches) const override { return record_matmul_name(product_.config); }
  void enqueue(int64_t copy, Launches launches) override {
    const auto& [ablation, copies, config, x, y] = product_;
    const RecordMatrix& matrix = copies[static_cast<size_t>(copy)];
    auto scratch = ctx_.workspace.scope();
    const int64_t words = (record_matmul_workspace_bytes(matrix, x.size(0)) + 3) / 4;
    const RecordMatmulOperands operands{.x = x.raw(),
                                        .x_stride = x.row_stride(),
                                        .y = y.raw(),
                                        .y_stride = y.row_stride(),
                                        .tokens = x.size(0),
                                        .dtype = x.dtype(),
                                        .workspace = scratch.tensor(DType::f32, {words}).raw()};
    ExecContext ctx = ctx_;
    ctx.launches = launches;
    if (ablation == Ablation::none || ablation == Ablation::one_stage) {
      record_matmul_cuda(matrix, operands, config, ctx);
    } else {
      tca_bme::record_matmul_by({.even = ablation_kernels(ablation)}, matrix, operands, config,
                                ctx);
    }
  }

 private:
  Product product_;
  ExecContext& ctx_;
};

class RecordAblation : public AblationContender {
 public:
  explicit RecordAblation(const ContenderInput& input)
      : weight_(input.weight), weights_("tca_bme", input) {
    require(weight_.dtype() == DType::f16, "the stages of a kernel are erased in f16, not in {}",
            name_of(weight_.dtype()));
  }

  int64_t copies() const override { return weights_.copies(); }
  int64_t bytes() const override {
    return ablation_ == Ablation::paper_decode && !as_paper_.empty()
               ? as_paper_.front().starts.bytes() + as_paper_.front().records.bytes()
               : weights_.bytes();
  }
  void choose(Ablation ablation) override { ablation_ = ablation; }

  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    weights_.tune(y.dtype(), x.size(0), Launches::ordinary);
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(
        std::make_unique<AblationKernel>(AblationKernel::Product{.ablation = ablation_,
                                                                 .copies = matrices(),
                                                                 .config = config_for(x.size(0)),
                                                                 .x = x,
                                                                 .y = y},
                                         weights_.context()));
    return kernels;
  }

 private:
  const CudaRecordWeight& records(int64_t copy) const {
    return dynamic_cast<const CudaRecordWeight&>(weights_.weight(copy));
  }

  RecordMatmulConfig config_for(int64_t tokens) {
    const RecordPlan plan = records(0).plan_for(weight_.dtype(), tokens, weights_.context());
    const auto* const chosen = std::get_if<RecordMatmulConfig>(&plan);
    RecordMatmulConfig config;
    if (chosen != nullptr) {
      config = *chosen;
    } else {
      const std::vector<RecordMatmulConfig> candidates =
          record_matmul_candidates(records(0).matrix(), tokens);
      require(!candidates.empty(), "this GPU does not run the kernel of tca_bme");
      config = candidates.front();
    }
    if (ablation_ == Ablation::one_stage) {
      config.stages = 1;
    }
    return config;
  }

  // Of all copies.
  std::vector<RecordMatrix> matrices() {
    std::vector<RecordMatrix> all;
    for (int64_t copy = 0; copy < copies(); ++copy) {
      all.push_back(records(copy).matrix());
      if (ablation_ == Ablation::paper_decode) {
        take_from_paper(all.back(), copy);
      }
    }
    return all;
  }

  void take_from_paper(RecordMatrix& matrix, int64_t copy) {
    if (std::ssize(as_paper_) == copy) {
      as_paper_.push_back(encode_records_as_paper(weight_, matrix.chunks, weights_.context()));
    }
    const DeviceRecords& records = as_paper_[static_cast<size_t>(copy)];
    matrix.records = static_cast<const uint8_t*>(records.records.data());
    matrix.starts = static_cast<const uint32_t*>(records.starts.data());
    matrix.largest_record = records.sizes.largest;
    matrix.common_record = records.sizes.common;
    matrix.pair = false;
  }

  Tensor weight_;
  FormatContender weights_;
  std::vector<DeviceRecords> as_paper_;  // as many as there are copies, or none yet
  Ablation ablation_ = Ablation::none;
};

}  // namespace

std::unique_ptr<AblationContender> make_ablation_contender(const ContenderInput& input) {
  return std::make_unique<RecordAblation>(input);
}

}  // namespace sparsellm
