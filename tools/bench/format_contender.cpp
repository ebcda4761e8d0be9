#include "tools/bench/format_contender.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine_options.h"
#include "kernels/base/token_buckets.h"
#include "kernels/base/upload.h"
#include "sparse/registry.h"
#include "tools/bench/cold_cache.h"

namespace sparsellm {
namespace {

std::unique_ptr<WeightMatrix> encode(std::string_view format, const ContenderInput& input) {
  ExecContext& ctx = input.ctx;
  std::optional<Uploader> uploads;
  if (ctx.device.is_cuda()) {
    uploads.emplace(ctx.device);
  }
  return weight_format(format).encode_on_device(input.weight, {.layout = input.layout},
                                                {.device = ctx.device,
                                                 .compute = input.weight.dtype(),
                                                 .threads = ctx.threads,
                                                 .exec = [&ctx]() -> ExecContext& { return ctx; },
                                                 .uploads = uploads ? &*uploads : nullptr});
}

// Of a workspace like that of an engine, for no fewer than its usual steps: what there is a choice
// of depends on it.
int64_t most_tokens(int64_t max_tokens) {
  return token_bucket(std::max(max_tokens, EngineOptions().step_tokens));
}

// What matmul() takes, and tuning.
int64_t workspace_for(const WeightMatrix& weight, int64_t max_tokens, Sums sums) {
  int64_t bytes = 0;
  for (int64_t tokens : token_buckets_up_to(most_tokens(max_tokens))) {
    bytes = std::max(bytes, weight.workspace_bytes(tokens, sums));
  }
  return bytes;
}

class FormatKernel : public BoundKernel {
 public:
  FormatKernel(FormatContender& contender, const Tensor& x, const Tensor& y)
      : contender_(contender), x_(x), y_(y) {}

  std::string algorithm(Launches launches) const override {
    ExecContext& ctx = contender_.context();
    ctx.launches = launches;
    return contender_.weight(0).plan_text(y_.dtype(), x_.size(0), ctx);
  }
  double input_rounding(Launches launches) const override {
    ExecContext& ctx = contender_.context();
    ctx.launches = launches;
    return contender_.weight(0).input_rounding(y_.dtype(), x_.size(0), ctx);
  }
  void enqueue(int64_t copy, Launches launches) override {
    ExecContext& ctx = contender_.context();
    ctx.launches = launches;
    contender_.weight(copy).matmul(x_, y_, {}, ctx);
  }

 private:
  FormatContender& contender_;
  Tensor x_;
  Tensor y_;
};

}  // namespace

FormatContender::FormatContender(std::string_view format, const ContenderInput& input)
    : FormatContender(encode(format, input), nullptr, input) {}

FormatContender::FormatContender(const WeightMatrix& weight, const ContenderInput& input)
    : FormatContender(nullptr, &weight, input) {}

FormatContender::FormatContender(std::unique_ptr<WeightMatrix> owned, const WeightMatrix* weight,
                                 const ContenderInput& input)
    : copies_{owned != nullptr ? owned.get() : weight},
      workspace_(input.ctx.device,
                 workspace_for(*copies_.front(), input.max_tokens, input.ctx.sums)),
      ctx_{.device = input.ctx.device,
           .workspace = workspace_,
           .threads = input.ctx.threads,
           .isa = input.ctx.isa,
           .cuda = input.ctx.cuda,
           .sums = input.ctx.sums},
      tune_cache_(input.tune_cache) {
  if (owned != nullptr) {
    owned_.push_back(std::move(owned));
  }
  const WeightMatrix& first = *copies_.front();
  const int64_t copies = cold_copies(bytes(), input.rotation_bytes);
  while (std::ssize(copies_) < copies) {
    std::unique_ptr<WeightMatrix> copy = first.copy();
    owned_.push_back(copy != nullptr ? std::move(copy) : encode(first.format(), input));
    copies_.push_back(owned_.back().get());
  }
}

int64_t FormatContender::bytes() const { return std::max(copies_.front()->bytes(), int64_t{1}); }

bool FormatContender::overlaps_launches() const { return ctx_.device.is_cuda(); }

std::vector<std::unique_ptr<BoundKernel>> FormatContender::bind(const Tensor& x, const Tensor& y) {
  if (overlaps_launches()) {
    tune(y.dtype(), x.size(0), Launches::overlapping);
  }
  tune(y.dtype(), x.size(0), Launches::ordinary);
  std::vector<std::unique_ptr<BoundKernel>> kernels;
  kernels.push_back(std::make_unique<FormatKernel>(*this, x, y));
  return kernels;
}

void FormatContender::tune(DType y, int64_t tokens, Launches launches) {
  ctx_.launches = launches;
  copies_.front()->tune({.alike = copies_,
                         .epilogue = {},
                         .y = y,
                         .tokens = {&tokens, 1},
                         .most_tokens = most_tokens(tokens)},
                        tune_cache_, ctx_);
}

}  // namespace sparsellm
