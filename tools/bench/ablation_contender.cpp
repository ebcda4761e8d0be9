#include "tools/bench/ablation_contender.h"

#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/ablation/ablation.h"
#include "sparse/tiled_csl/ablation/ablation.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/format_contender.h"

namespace sparsellm {
namespace {

constexpr std::string_view kTcaBme = "tca_bme";
constexpr std::string_view kTiledCsl = "tiled_csl";
constexpr std::string_view kFormats[] = {kTcaBme, kTiledCsl};

class AblationKernel : public BoundKernel {
 public:
  AblationKernel(std::unique_ptr<AblatedProduct> product, ExecContext& ctx)
      : product_(std::move(product)), ctx_(ctx) {}

  std::string algorithm(Launches) const override { return product_->configuration(); }
  void enqueue(int64_t copy, Launches launches) override {
    ExecContext ctx = ctx_;
    ctx.launches = launches;
    product_->enqueue(copy, ctx);
  }

 private:
  std::unique_ptr<AblatedProduct> product_;
  ExecContext& ctx_;
};

std::vector<const WeightMatrix*> copies_of(const FormatContender& weights) {
  std::vector<const WeightMatrix*> copies;
  for (int64_t copy = 0; copy < weights.copies(); ++copy) {
    copies.push_back(&weights.weight(copy));
  }
  return copies;
}

class KernelAblation : public AblationContender {
 public:
  // tuned: the weights whose kernel is ablated, if it has choices to be tuned.
  KernelAblation(std::unique_ptr<FormatContender> tuned, std::unique_ptr<AblatedWeight> ablated,
                 ExecContext& ctx)
      : tuned_(std::move(tuned)), ablated_(std::move(ablated)), ctx_(ctx) {}

  std::span<const AblationVariant> variants() const override { return ablated_->variants(); }
  int64_t copies() const override { return ablated_->copies(); }
  int64_t bytes() const override { return ablated_->bytes(variant_); }
  void choose(size_t variant) override { variant_ = variant; }

  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    if (tuned_ != nullptr) {
      tuned_->tune(y.dtype(), x.size(0), Launches::ordinary);
    }
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<AblationKernel>(ablated_->bind(variant_, x, y, ctx_), ctx_));
    return kernels;
  }

 private:
  std::unique_ptr<FormatContender> tuned_;
  std::unique_ptr<AblatedWeight> ablated_;
  ExecContext& ctx_;
  size_t variant_ = 0;
};

std::unique_ptr<AblationContender> tca_bme_contender(const ContenderInput& input) {
  auto weights = std::make_unique<FormatContender>(kTcaBme, input);
  auto ablated = tca_bme::ablate(input.weight, copies_of(*weights));
  ExecContext& ctx = weights->context();
  return std::make_unique<KernelAblation>(std::move(weights), std::move(ablated), ctx);
}

std::unique_ptr<AblationContender> tiled_csl_contender(const ContenderInput& input) {
  const auto copies = [&](int64_t bytes) { return cold_copies(bytes, input.rotation_bytes); };
  return std::make_unique<KernelAblation>(
      nullptr, tiled_csl::ablate(input.weight, copies, input.ctx), input.ctx);
}

}  // namespace

std::span<const std::string_view> ablation_formats() { return kFormats; }

std::unique_ptr<AblationContender> make_ablation_contender(std::string_view format,
                                                           const ContenderInput& input) {
  if (format == kTcaBme) {
    return tca_bme_contender(input);
  }
  require(format == kTiledCsl, "the kernel of {} has no stages to erase", format);
  return tiled_csl_contender(input);
}

}  // namespace sparsellm
