#include "tools/bench/ablation_contender.h"

#include <utility>
#include <vector>

#include "tools/bench/format_contender.h"

namespace sparsellm {
namespace {

using tca_bme::AblatedProduct;
using tca_bme::AblatedWeight;
using tca_bme::Ablation;

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

class TcaBmeAblation : public AblationContender {
 public:
  explicit TcaBmeAblation(const ContenderInput& input)
      : weights_("tca_bme", input), ablated_(tca_bme::ablate(input.weight, copies_of(weights_))) {}

  int64_t copies() const override { return weights_.copies(); }
  int64_t bytes() const override { return ablated_->bytes(ablation_); }
  void choose(Ablation ablation) override { ablation_ = ablation; }

  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    weights_.tune(y.dtype(), x.size(0), Launches::ordinary);
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<AblationKernel>(
        ablated_->bind(ablation_, x, y, weights_.context()), weights_.context()));
    return kernels;
  }

 private:
  FormatContender weights_;
  std::unique_ptr<AblatedWeight> ablated_;
  Ablation ablation_ = Ablation::none;
};

}  // namespace

std::unique_ptr<AblationContender> make_ablation_contender(const ContenderInput& input) {
  return std::make_unique<TcaBmeAblation>(input);
}

}  // namespace sparsellm
