#include "tools/bench/mlp.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <utility>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "tools/bench/mlp_bytes.h"
#include "tools/bench/product_meter.h"
#include "tools/bench/verify_product.h"
#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

// What copies take at most: a part of the free memory, and so many times what is read in a round.
constexpr int64_t kShareOfMemory = 4;
constexpr int64_t kMostRotations = 64;

// Results that a part has on the device.
struct PartResults {
  OwnedTensor active;
  OwnedTensor h;
  OwnedTensor y;
};

class MlpBench {
 public:
  MlpBench(const MlpBenchOptions& options, const std::function<void(const MlpResult&)>& on_result)
      : options_(options),
        on_result_(on_result),
        meter_(options.device, options.repeat, Sums::fastest, options.threads),
        host_threads_(options.threads) {
    meter_.context().isa = options.cpu_isa;
    if (options.ablation) {
      subjects_ = {{MlpPart::dense}, {MlpPart::ops}, {MlpPart::fused}};
      for (const MlpAblation variant : kMlpAblations) {
        subjects_.push_back({MlpPart::ablated, variant});
      }
      alpha_factors_.assign(kAblationAlphas.begin(), kAblationAlphas.end());
      return;
    }
    for (const MlpPart part : kMlpParts) {
      if (part != MlpPart::fused || options.device.is_cuda()) {
        subjects_.push_back({part});
      }
    }
  }

  std::vector<MlpResult> run() {
    for (const MlpShape& shape : options_.shapes) {
      for (const float alpha_factor : alpha_factors_) {
        const MlpInstance mlp{.shape = shape, .alpha_factor = alpha_factor};
        try {
          bench_mlp(mlp);
        } catch (const OutOfMemory& error) {  // before there was any result
          for (const MlpSubject subject : subjects_) {
            deliver_failed(mlp, subject, error.what());
          }
        }
      }
    }
    return std::move(results_);
  }

 private:
  struct MlpInstance {
    MlpShape shape;
    float alpha_factor = 1.0f;
  };
  struct Operands {
    MlpReference reference;
    OwnedTensor x;
    OwnedTensor active;
    OwnedTensor h;
    PartResults results;
    PartResults dense_results;  // of what takes turns with them
  };

  DType activations() const { return options_.device.is_cuda() ? options_.dtype : DType::f32; }
  int64_t most_tokens() const { return *std::ranges::max_element(options_.tokens); }

  OwnedTensor on_device(const Tensor& host) {
    OwnedTensor copy = allocate_tensor(options_.device, host.dtype(), {host.size(0), host.size(1)},
                                       "an operand of an MLP");
    copy_bytes(options_.device, copy.view.raw(), {}, host.raw(), host.bytes());
    return copy;
  }

  OwnedTensor on_host(const Tensor& result) {
    if (const CudaContext* const cuda = meter_.context().cuda) {
      cuda->synchronize();
    }
    OwnedTensor copy =
        allocate_tensor({}, result.dtype(), {result.size(0), result.size(1)}, "a result");
    copy_bytes({}, copy.view.raw(), options_.device, result.raw(), result.bytes());
    return copy;
  }

  PartResults make_results(const MlpShape& shape) {
    const auto make = [&](DType dtype, int64_t columns) {
      return allocate_tensor(options_.device, dtype, {most_tokens(), columns}, "a result");
    };
    return {.active = make(DType::u8, shape.neurons),
            .h = make(activations(), shape.neurons),
            .y = make(activations(), shape.hidden)};
  }

  Operands make_operands(const MlpInstance& mlp) {
    const MlpShape& shape = mlp.shape;
    MlpReference reference({.shape = shape,
                            .weights = options_.dtype,
                            .activations = activations(),
                            .tokens = most_tokens(),
                            .votes = options_.votes,
                            .shares = options_.shares,
                            .alpha_factor = mlp.alpha_factor,
                            .seed = options_.seed},
                           host_threads_);
    OwnedTensor x = on_device(reference.x());
    OwnedTensor active = on_device(reference.active());
    OwnedTensor h = on_device(reference.h());
    return {.reference = std::move(reference),
            .x = std::move(x),
            .active = std::move(active),
            .h = std::move(h),
            .results = make_results(shape),
            .dense_results = make_results(shape)};
  }

  void bench_mlp(const MlpInstance& mlp) {
    const Operands operands = make_operands(mlp);
    std::unique_ptr<MlpContender> dense;
    std::set<int64_t> right_dense;  // tokens
    for (const MlpSubject subject : subjects_) {
      const MlpPart part = subject.part;
      std::unique_ptr<MlpContender> contender;
      try {
        contender = make_contender(mlp.shape, subject, operands);
      } catch (const OutOfMemory& error) {
        deliver_failed(mlp, subject, error.what());
        continue;
      }
      for (const int64_t tokens : options_.tokens) {
        MlpResult result = make_result(mlp, subject, tokens);
        try {
          const bool compares = is_whole(part) && right_dense.contains(tokens);
          measure(*contender, operands, compares ? dense.get() : nullptr, result);
          if (part == MlpPart::dense) {
            right_dense.insert(tokens);
          }
        } catch (const DeviceLost&) {
          throw;
        } catch (const std::exception& error) {
          meter_.wait();
          result.note = error.what();
        }
        deliver(std::move(result));
      }
      if (part == MlpPart::dense) {
        dense = std::move(contender);
      }
    }
  }

  // Of the fewest tokens, which read the least. Where hardly anything is read, copies of all
  // weights would take too much memory, and time to make.
  int64_t copies_of(MlpSubject subject, const MlpShape& shape, const Operands& operands) const {
    const MlpShares fewest = operands.reference.shares(*std::ranges::min_element(options_.tokens));
    const MlpBytes bytes = bytes_of(subject, shape, fewest, options_.dtype);
    const int64_t room = std::min(device_memory(options_.device).free / kShareOfMemory,
                                  kMostRotations * options_.rotation_bytes);
    return std::clamp(cold_copies(std::max<int64_t>(bytes.read, 1), options_.rotation_bytes),
                      int64_t{1}, std::max<int64_t>(room / bytes.held, 1));
  }

  std::unique_ptr<MlpContender> make_contender(const MlpShape& shape, MlpSubject subject,
                                               const Operands& operands) {
    const MlpPart part = subject.part;
    const PartResults& results = part == MlpPart::dense ? operands.dense_results : operands.results;
    return make_mlp_contender(
        subject, {.shape = shape,
                  .weights = options_.dtype,
                  .seed = options_.seed,
                  .activation = part == MlpPart::dense ? MlpReference::dense_activation()
                                                       : operands.reference.activation(),
                  .prediction = operands.reference.prediction(),
                  .x = operands.x.view,
                  .given_active = operands.active.view,
                  .given_h = operands.h.view,
                  .active = results.active.view,
                  .h = results.h.view,
                  .y = results.y.view,
                  .copies = copies_of(subject, shape, operands),
                  .ctx = meter_.context(),
                  .tune_cache = meter_.tune_cache()});
  }

  static MlpResult make_result(const MlpInstance& mlp, MlpSubject subject, int64_t tokens) {
    MlpResult result;
    result.shape = mlp.shape;
    result.alpha_factor = mlp.alpha_factor;
    result.tokens = tokens;
    result.part = subject.part;
    result.variant = subject.variant;
    return result;
  }

  static const Tensor& result_of(MlpPart part, const Operands& operands) {
    switch (part) {
      case MlpPart::dense:
        return operands.dense_results.y.view;
      case MlpPart::predictor:
        return operands.results.active.view;
      case MlpPart::rows:
        return operands.results.h.view;
      default:
        return operands.results.y.view;
    }
  }

  double error_of(MlpPart part, const MlpReference& reference, const Tensor& result) {
    const OwnedTensor host = on_host(result);
    switch (part) {
      case MlpPart::dense:
        return reference.dense_y_error(host.view);
      case MlpPart::predictor:
        return reference.active_error(host.view);
      case MlpPart::rows:
        return reference.h_error(host.view);
      case MlpPart::down:
        return reference.down_error(host.view);
      default:
        return reference.y_error(host.view);
    }
  }

  void measure(MlpContender& contender, const Operands& operands, MlpContender* dense,
               MlpResult& result) {
    const MlpReference& reference = operands.reference;
    const Tensor y = result_of(result.part, operands).rows(0, result.tokens);
    const Tensor dense_y = result_of(MlpPart::dense, operands).rows(0, result.tokens);
    const auto verify = [&](MlpPart part, const Tensor& tensor) {
      const double error = error_of(part, reference, tensor);
      if (part == result.part) {
        result.worst_error = std::max(result.worst_error, error);
      }
      require(error <= 1.0, "wrong result of {}: the worst error is {:.3g} times the tolerance",
              name_of(part), error);
    };
    const auto work_of = [&](MlpContender& measured, Launches launches) {
      return TimedWork{.pieces = measured.copies(),
                       .run = [&measured, launches, &result](int64_t copy) {
                         measured.enqueue(result.tokens, copy, launches);
                       }};
    };
    const auto time = [&](Launches launches, MlpComparison& compared) {
      for (int64_t copy = 0; copy < contender.copies(); ++copy) {
        poison(y, meter_.context());
        contender.enqueue(result.tokens, copy, launches);
        verify(result.part, y);
      }
      poison(y, meter_.context());
      std::vector<TimedWork> works{work_of(contender, launches)};
      if (dense != nullptr) {
        poison(dense_y, meter_.context());
        works.push_back(work_of(*dense, launches));
      }
      const auto seconds = meter_.time_by_turns(works, options_.repeat);
      // A replay may differ from the calls that it was captured from.
      verify(result.part, y);
      if (dense != nullptr) {
        verify(MlpPart::dense, dense_y);
        const Turns turns = scaled(compare_turns(seconds[0], seconds[1]), kMicroseconds);
        compared = {.dense_us = turns.baseline.median,
                    .speedup = turns.speedup(),
                    .verdict = turns.verdict};
      }
      return scaled(spread_of(seconds[0]), kMicroseconds);
    };
    contender.tune(result.tokens);
    describe(reference, result);
    result.us = time(Launches::ordinary, result.compared);
    if (options_.device.is_cuda()) {
      result.overlapped_us = time(Launches::overlapping, result.overlapped_compared);
    }
    result.verified = true;
    const double bytes_per_second =
        static_cast<double>(result.bytes_read) / result.us.median * kMicroseconds;
    if (result.bytes_read > 0) {
      result.read_gb_per_s = bytes_per_second * 1e-9;
      result.fraction_of_read_ceiling = bytes_per_second / meter_.read_ceiling(result.bytes_read);
    }
    if (contender.copies() * result.bytes_read < options_.rotation_bytes) {
      result.note = fmt::format("{} copies are too few to be out of the cache", contender.copies());
    }
  }

  // All but what was measured.
  void describe(const MlpReference& reference, MlpResult& result) const {
    result.prediction = reference.prediction();
    result.threshold = reference.activation().threshold;
    result.shares = reference.shares(result.tokens);
    result.bytes_read =
        bytes_of(result.subject(), result.shape, result.shares, options_.dtype).read;
    if (reads_signs(result.part)) {
      result.sign_bytes = sign_bytes_of(result.shape);
      result.xors = sign_xors_of(result.shape, result.tokens);
    }
  }

  void deliver(MlpResult result) {
    on_result_(result);
    results_.push_back(std::move(result));
  }

  void deliver_failed(const MlpInstance& mlp, MlpSubject subject, const std::string& note) {
    for (const int64_t tokens : options_.tokens) {
      MlpResult result = make_result(mlp, subject, tokens);
      result.note = note;
      deliver(std::move(result));
    }
  }

  const MlpBenchOptions& options_;
  const std::function<void(const MlpResult&)>& on_result_;
  ProductMeter meter_;
  ThreadPool host_threads_;  // of references
  std::vector<MlpSubject> subjects_;
  std::vector<float> alpha_factors_{1.0f};
  std::vector<MlpResult> results_;
};

}  // namespace

void check_options(const MlpBenchOptions& options) {
  require(options.dtype == DType::f16 || options.dtype == DType::bf16,
          "MLPs are benchmarked in f16 and bf16, not in {}", name_of(options.dtype));
  require(options.repeat > 0, "{} replays have no median", options.repeat);
  require(options.rotation_bytes >= 0, "{} bytes of copies", options.rotation_bytes);
  check_shares(options.shares);
  for (const MlpShape& shape : options.shapes) {
    require(shape.neurons > 0 && shape.hidden > 0, "an MLP of the shape {} is empty",
            to_string(shape));
  }
  for (const int64_t tokens : options.tokens) {
    require(tokens > 0, "an MLP for {} tokens", tokens);
  }
}

void check_ablation(const MlpBenchOptions& options) {
  require(options.device.is_cuda(), "an MLP is taken apart on CUDA alone, not on {}",
          to_string(options.device));
  for (const MlpShape& shape : options.shapes) {
    require(shape.gated, "an MLP is taken apart that has a gate, which {} has not",
            to_string(shape));
  }
  require(options.tokens == std::vector<int64_t>{1}, "an MLP is taken apart for one token");
}

std::vector<MlpResult> bench_mlps(const MlpBenchOptions& options,
                                  const std::function<void(const MlpResult&)>& on_result) {
  check_options(options);
  if (options.ablation) {
    check_ablation(options);
  }
  if (options.tokens.empty()) {
    return {};
  }
  return MlpBench(options, on_result).run();
}

}  // namespace sparsellm
