#include "tools/bench/mlp_contender.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/engine_options.h"
#include "kernels/base/token_buckets.h"
#include "kernels/base/workspace.h"
#include "kernels/transpose.h"
#include "models/mlp.h"
#include "sparse/activation/active_rows.h"
#include "sparse/activation/fused_mlp.h"
#include "sparse/dense/dense.h"
#include "tools/bench/cold_cache.h"

namespace sparsellm {
namespace {

ExecContext context_with(Workspace& workspace, const ExecContext& ctx) {
  return {.device = ctx.device,
          .workspace = workspace,
          .threads = ctx.threads,
          .isa = ctx.isa,
          .cuda = ctx.cuda,
          .sums = ctx.sums};
}

Linear dense_linear(OwnedTensor weight, const Activation& activation = {}) {
  return {.weight = std::make_unique<DenseWeight>(std::move(weight)),
          .bias = {},
          .activation = activation};
}

std::unique_ptr<Mlp> make_dense_mlp(const MlpInput& input) {
  const MlpShape& shape = input.shape;
  ExecContext& ctx = input.ctx;
  OwnedTensor up = random_up(shape, input.weights, input.seed, ctx);
  OwnedTensor down = allocate_tensor(ctx.device, input.weights, {shape.hidden, shape.neurons},
                                     "a down projection");
  {
    const OwnedTensor rows = random_down(shape, input.weights, input.seed, ctx);
    transpose(rows.view, down.view, ctx);
    if (ctx.cuda != nullptr) {
      ctx.cuda->synchronize();  // before the rows go
    }
  }
  if (shape.gated) {
    return std::make_unique<GatedMlp>(dense_linear(std::move(up)), input.activation,
                                      dense_linear(std::move(down)));
  }
  return std::make_unique<PlainMlp>(dense_linear(std::move(up), input.activation),
                                    dense_linear(std::move(down)));
}

// A workspace like that of an engine, for no fewer than its usual steps: what there is a choice of
// depends on it.
int64_t dense_workspace_bytes(const Mlp& mlp, const MlpInput& input) {
  const int64_t most = std::max(input.x.size(0), EngineOptions().step_tokens);
  int64_t bytes = 0;
  for (const int64_t tokens : token_buckets_up_to(most)) {
    bytes = std::max(bytes, mlp.workspace_bytes(tokens, input.x.dtype(), input.ctx.sums));
  }
  return bytes;
}

class DenseMlpContender : public MlpContender {
 public:
  explicit DenseMlpContender(const MlpInput& input)
      : x_(input.x),
        y_(input.y),
        copies_(make_copies(input)),
        workspace_(input.ctx.device, dense_workspace_bytes(*copies_.front(), input)),
        ctx_(context_with(workspace_, input.ctx)),
        tune_cache_(input.tune_cache) {}

  int64_t copies() const override { return std::ssize(copies_); }

  void tune(int64_t tokens) override {
    if (!ctx_.device.is_cuda()) {
      return;
    }
    for (const Launches launches : {Launches::ordinary, Launches::overlapping}) {
      ctx_.launches = launches;
      for (size_t i = 0; i < copies_.front()->linears().size(); ++i) {
        const Linear& first = *copies_.front()->linears()[i];
        std::vector<const WeightMatrix*> alike;
        for (const auto& copy : copies_) {
          alike.push_back(copy->linears()[i]->weight.get());
        }
        first.weight->tune(
            {.alike = alike,
             .epilogue = {.bias = {}, .activation = first.activation},
             .y = y_.dtype(),
             .tokens = {&tokens, 1},
             .most_tokens = token_bucket(std::max(tokens, EngineOptions().step_tokens))},
            tune_cache_, ctx_);
      }
    }
  }

  void enqueue(int64_t tokens, int64_t copy, Launches launches) override {
    ctx_.launches = launches;
    copies_[static_cast<size_t>(copy)]->forward(x_.rows(0, tokens), {}, y_.rows(0, tokens), ctx_);
  }

 private:
  static std::vector<std::unique_ptr<Mlp>> make_copies(const MlpInput& input) {
    std::vector<std::unique_ptr<Mlp>> copies;
    while (std::ssize(copies) < input.copies) {
      copies.push_back(make_dense_mlp(input));
    }
    return copies;
  }

  Tensor x_;
  Tensor y_;
  std::vector<std::unique_ptr<Mlp>> copies_;
  Workspace workspace_;
  ExecContext ctx_;
  TuneCache& tune_cache_;
};

class SparseMlpContender : public MlpContender {
 public:
  SparseMlpContender(MlpSubject subject, const MlpInput& input)
      : part_(subject.part),
        input_(input),
        workspace_(input.ctx.device, workspace_bytes(part_, input)),
        ctx_(context_with(workspace_, input.ctx)) {
    const MlpPart part = part_;
    if (part == MlpPart::ablated) {
      ablated_ = ablate_mlp(subject.variant, ctx_);
    }
    const bool predicts = part != MlpPart::rows && part != MlpPart::down;
    const bool multiplies = part != MlpPart::predictor && part != MlpPart::down;
    const bool adds_up = part != MlpPart::predictor && part != MlpPart::rows;
    const auto random_up_of_input = [&] {
      return random_up(input.shape, input.weights, input.seed, input.ctx);
    };
    const OwnedTensor signed_by = predicts && !multiplies ? random_up_of_input() : OwnedTensor();
    for (int64_t i = 0; i < input.copies; ++i) {
      Copy& copy = copies_.emplace_back();
      if (multiplies) {
        copy.up = random_up_of_input();
      }
      if (adds_up) {
        copy.down = random_down(input.shape, input.weights, input.seed, input.ctx);
      }
      if (predicts) {
        const Tensor& up = multiplies ? copy.up.view : signed_by.view;
        copy.signs = pack_sign_words(first_rows(up, input.shape), ctx_);
      }
    }
  }

  int64_t copies() const override { return std::ssize(copies_); }
  void tune(int64_t) override {}

  void enqueue(int64_t tokens, int64_t copy, Launches launches) override {
    ctx_.launches = launches;
    const Copy& weights = copies_[static_cast<size_t>(copy)];
    const auto of_tokens = [tokens](const Tensor& all) { return all.rows(0, tokens); };
    const Tensor x = of_tokens(input_.x);
    switch (part_) {
      case MlpPart::predictor:
        return predict(weights, x, of_tokens(input_.active));
      case MlpPart::rows:
        return multiply(weights, x, of_tokens(input_.given_active), of_tokens(input_.h));
      case MlpPart::down:
        return add_up(weights, of_tokens(input_.given_h), of_tokens(input_.y));
      case MlpPart::fused:
        return fuse(weights, x, of_tokens(input_.y));
      default: {
        auto scratch = ctx_.workspace.scope();
        const Tensor active = scratch.tensor(DType::u8, {tokens, input_.shape.neurons});
        const Tensor h = scratch.tensor(x.dtype(), {tokens, input_.shape.neurons});
        predict(weights, x, active);
        if (ablated_ != nullptr) {
          return enqueue_ablated(weights, x, active, of_tokens(input_.y));
        }
        multiply(weights, x, active, h);
        add_up(weights, h, of_tokens(input_.y));
      }
    }
  }

 private:
  // Of the weights, those that the part reads.
  struct Copy {
    OwnedTensor up;
    OwnedTensor down;
    OwnedSignWords signs;
  };

  static int64_t workspace_bytes(MlpPart part, const MlpInput& input) {
    const MlpShape& shape = input.shape;
    const Device device = input.ctx.device;
    const int64_t tokens = input.x.size(0);
    return Workspace::tensor_bytes(DType::u8, {tokens, shape.neurons}) +
           Workspace::tensor_bytes(input.x.dtype(), {tokens, shape.neurons}) +
           std::max({sign_predictor_workspace_bytes(device, shape.hidden, tokens),
                     down_rows_workspace_bytes(device, shape.neurons, shape.hidden, tokens),
                     part == MlpPart::ablated
                         ? ablated_mlp_workspace_bytes(shape.neurons, shape.hidden)
                         : 0});
  }

  void predict(const Copy& weights, const Tensor& x, const Tensor& active) {
    predict_active(x, weights.signs.view(), input_.prediction, active, ctx_);
  }

  void multiply(const Copy& weights, const Tensor& x, const Tensor& active, const Tensor& h) {
    const DenseRows first(first_rows(weights.up.view, input_.shape));
    if (input_.shape.gated) {
      const DenseRows last(last_rows(weights.up.view, input_.shape));
      gated_rows(x,
                 {.gate = first,
                  .up = last,
                  .gate_bias = {},
                  .up_bias = {},
                  .activation = input_.activation},
                 active, h, ctx_);
    } else {
      plain_rows(x, {.up = first, .bias = {}, .activation = input_.activation}, active, h, ctx_);
    }
  }

  void add_up(const Copy& weights, const Tensor& h, const Tensor& y) {
    down_rows(h, DenseRows(weights.down.view), {}, y, ctx_);
  }

  void enqueue_ablated(const Copy& weights, const Tensor& x, const Tensor& active,
                       const Tensor& y) {
    ablated_->enqueue({.x = x,
                       .gate = first_rows(weights.up.view, input_.shape),
                       .up = last_rows(weights.up.view, input_.shape),
                       .down = weights.down.view,
                       .threshold = input_.activation.threshold,
                       .active = active,
                       .y = y},
                      ctx_);
  }

  void fuse(const Copy& weights, const Tensor& x, const Tensor& y) {
    const Tensor first = first_rows(weights.up.view, input_.shape);
    fused_mlp(x, {},
              {.gate = input_.shape.gated ? first : Tensor(),
               .up = last_rows(weights.up.view, input_.shape),
               .down = weights.down.view,
               .gate_bias = {},
               .up_bias = {},
               .down_bias = {},
               .signs = weights.signs.view(),
               .activation = input_.activation,
               .prediction = input_.prediction},
              y, ctx_);
  }

  MlpPart part_;
  MlpInput input_;
  Workspace workspace_;
  ExecContext ctx_;
  std::vector<Copy> copies_;
  std::unique_ptr<AblatedMlp> ablated_;  // of MlpPart::ablated
};

}  // namespace

std::string_view name_of(MlpPart part) {
  switch (part) {
    case MlpPart::dense:
      return "dense";
    case MlpPart::predictor:
      return "predictor";
    case MlpPart::rows:
      return "rows";
    case MlpPart::down:
      return "down";
    case MlpPart::ops:
      return "ops";
    case MlpPart::fused:
      return "fused";
    case MlpPart::ablated:
      return "ablated";
  }
  return "?";
}

std::unique_ptr<MlpContender> make_mlp_contender(MlpSubject subject, const MlpInput& input) {
  if (subject.part == MlpPart::dense) {
    return std::make_unique<DenseMlpContender>(input);
  }
  return std::make_unique<SparseMlpContender>(subject, input);
}

}  // namespace sparsellm
