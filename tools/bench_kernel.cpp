#include "tools/bench_kernel.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "tools/contender.h"
#include "tools/format_contender.h"
#include "tools/library_contenders.h"
#include "tools/read_bandwidth_device.h"
#include "tools/replay_timer.h"
#include "tools/verify_product.h"

namespace sparsellm {
namespace {

// The elements of a contiguous tensor in one row.
Tensor flat(const Tensor& x) { return Tensor(x.raw(), x.dtype(), {x.element_count()}, x.device()); }

constexpr std::string_view kCublas = "cublas";
constexpr std::string_view kCublasLt = "cublaslt";
constexpr std::string_view kCusparse = "cusparse";
constexpr double kCusparseSparsity = 0.5;
constexpr int64_t kWorkspaceBytes = 64 << 20;
constexpr int64_t kChoiceRepeat = 5;  // enough to tell one algorithm from another

bool is_library(std::string_view format) {
  return format == kCublas || format == kCublasLt || format == kCusparse;
}

bool contains(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::unique_ptr<Contender> make_contender(std::string_view format, const ContenderInput& input) {
  if (format == kCublas) {
    return make_cublas_contender(input);
  }
  if (format == kCublasLt) {
    return make_cublaslt_contender(input);
  }
  if (format == kCusparse) {
    return make_cusparse_contender(input);
  }
  return make_format_contender(format, input);
}

void check_options(const KernelBenchOptions& options) {
  require(options.device.is_cuda(), "kernels are benchmarked on CUDA devices, not on the device {}",
          to_string(options.device));
  require(options.dtype == DType::f16 || options.dtype == DType::bf16,
          "kernels are benchmarked in f16 and bf16, not in {}", name_of(options.dtype));
  require(options.repeat > 0, "{} replays have no median", options.repeat);
  require(options.rotation_bytes >= 0, "{} bytes of copies", options.rotation_bytes);
  for (const auto& [out, in] : options.shapes) {
    require(out > 0 && in > 0, "a weight of the shape {}x{} is empty", out, in);
  }
  for (const int64_t tokens : options.tokens) {
    require(tokens > 0, "a product with {} tokens", tokens);
  }
  for (const double sparsity : options.sparsities) {
    require(sparsity >= 0.0 && sparsity <= 1.0, "a sparsity of {} is not between 0 and 1",
            sparsity);
  }
  const std::vector<std::string_view> known = kernel_bench_formats();
  for (const std::string& format : options.formats) {
    require(contains(known, format), "unknown format '{}'; use {}", format, fmt::join(known, ", "));
  }
}

// A weight, as many tokens as are needed at most, and the right result: fewer tokens are the first
// rows of all of them.
class Operands {
 public:
  Operands(const KernelBenchOptions& options, int64_t out, int64_t in, double sparsity,
           ExecContext& ctx)
      : weight_(allocate_tensor(ctx.device, options.dtype, {out, in}, "the weight")),
        x_(allocate_tensor(ctx.device, options.dtype, {most_tokens(options), in}, "x")),
        y_(allocate_tensor(ctx.device, options.dtype, {most_tokens(options), out}, "y")) {
    fill_random({.key = random_key(options.seed, "weight"), .sparsity = sparsity},
                flat(weight_.view), ctx);
    fill_random({.key = random_key(options.seed, "x")}, flat(x_.view), ctx);
    reference_.emplace(x_.view, weight_.view, ctx);
  }

  const Tensor& weight() const { return weight_.view; }
  Tensor x(int64_t tokens) const { return x_.view.rows(0, tokens); }
  Tensor y(int64_t tokens) const { return y_.view.rows(0, tokens); }
  const ProductReference& reference() const { return *reference_; }

 private:
  static int64_t most_tokens(const KernelBenchOptions& options) {
    return *std::max_element(options.tokens.begin(), options.tokens.end());
  }

  OwnedTensor weight_;
  OwnedTensor x_;
  OwnedTensor y_;
  std::optional<ProductReference> reference_;  // once the operands are filled
};

void require_right(double worst_error) {
  require(worst_error <= 1.0, "wrong result: the worst error is {:.3g} times the tolerance",
          worst_error);
}

class KernelBench {
 public:
  KernelBench(const KernelBenchOptions& options,
              const std::function<void(const KernelResult&)>& on_result)
      : options_(options), on_result_(on_result), cuda_(options.device) {}

  std::vector<KernelResult> run() {
    for (const auto& [out, in] : options_.shapes) {
      for (const double sparsity : options_.sparsities) {
        bench_weight(out, in, sparsity);
      }
    }
    return std::move(results_);
  }

 private:
  using Results = std::vector<KernelResult>;  // of one format, by number of tokens

  void bench_weight(int64_t out, int64_t in, double sparsity) {
    std::optional<Operands> operands;
    std::string problem;
    try {
      operands.emplace(options_, out, in, sparsity, ctx_);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const auto bench = [&](std::string_view format) {
      Results results;
      for (const int64_t tokens : options_.tokens) {
        KernelResult& result = results.emplace_back();
        result.out = out;
        result.in = in;
        result.tokens = tokens;
        result.sparsity = sparsity;
        result.format = format;
        result.note = problem;
      }
      if (operands) {
        bench_format(*operands, results);
      }
      return results;
    };

    Results cublas = bench(kCublas);
    Results cublaslt = bench(kCublasLt);
    std::vector<double> best_us;
    for (size_t i = 0; i < options_.tokens.size(); ++i) {
      double best = std::numeric_limits<double>::infinity();
      for (const KernelResult* result : {&cublas[i], &cublaslt[i]}) {
        best = result->verified ? std::min(best, result->median_us) : best;
      }
      best_us.push_back(best);
    }
    deliver(std::move(cublas), best_us);
    deliver(std::move(cublaslt), best_us);
    if (sparsity >= kCusparseSparsity || contains(options_.formats, kCusparse)) {
      deliver(bench(kCusparse), best_us);
    }
    for (const std::string& format : options_.formats) {
      if (!is_library(format)) {
        deliver(bench(format), best_us);
      }
    }
  }

  void deliver(Results results, const std::vector<double>& best_us) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].verified && best_us[i] < std::numeric_limits<double>::infinity()) {
        results[i].speedup = best_us[i] / results[i].median_us;
      }
      on_result_(results[i]);
      results_.push_back(std::move(results[i]));
    }
  }

  void bench_format(const Operands& operands, Results& results) {
    try {
      const std::unique_ptr<Contender> contender = make_contender(
          results.front().format,
          {.weight = operands.weight(), .rotation_bytes = options_.rotation_bytes, .ctx = ctx_});
      for (KernelResult& result : results) {
        try {
          bench_tokens(*contender, operands, result);
        } catch (const std::exception& error) {
          result.note = error.what();
        }
      }
    } catch (const std::exception& error) {
      for (KernelResult& result : results) {
        result.note = error.what();
      }
    }
  }

  // Fills in what depends on the kernel. Throws where `result` is to stay unverified.
  void bench_tokens(Contender& contender, const Operands& operands, KernelResult& result) {
    const Tensor y = operands.y(result.tokens);
    result.encoded_bytes = contender.bytes();
    const std::unique_ptr<BoundKernel> kernel = fastest_kernel(contender, operands, result);
    const double ceiling = read_ceiling(result.encoded_bytes);
    poison(y, ctx_);
    const ReplayTimes times = time_kernel(contender, *kernel, options_.repeat);
    // What was timed is what was verified: a replay may differ from the calls that it was captured
    // from.
    result.worst_error = std::max(result.worst_error, operands.reference().worst_error(y, ctx_));
    require_right(result.worst_error);

    result.algorithm = kernel->algorithm();
    result.verified = true;
    result.median_us = times.median * 1e6;
    result.min_us = times.min * 1e6;
    result.max_us = times.max * 1e6;
    const double bytes_per_second = static_cast<double>(result.encoded_bytes) / times.median;
    result.read_gb_per_s = bytes_per_second * 1e-9;
    result.fraction_of_read_ceiling = bytes_per_second / ceiling;
    result.tflops = 2.0 * static_cast<double>(result.out) * static_cast<double>(result.in) *
                    static_cast<double>(result.tokens) / times.median * 1e-12;
  }

  // The fastest of the contender's kernels that are right; throws if there is none. Sets the worst
  // error of the one that counts, and notes down what is wrong with others.
  std::unique_ptr<BoundKernel> fastest_kernel(Contender& contender, const Operands& operands,
                                              KernelResult& result) {
    const Tensor y = operands.y(result.tokens);
    std::vector<std::unique_ptr<BoundKernel>> kernels =
        contender.bind(operands.x(result.tokens), y);
    std::unique_ptr<BoundKernel> fastest;
    double fastest_seconds = std::numeric_limits<double>::infinity();
    for (std::unique_ptr<BoundKernel>& kernel : kernels) {
      try {
        const double worst_error =
            verify_product([&](int64_t copy) { kernel->enqueue(copy); }, contender.copies(), y,
                           operands.reference(), ctx_);
        if (fastest == nullptr) {
          result.worst_error = worst_error;
        }
        require_right(worst_error);
        const double seconds =
            kernels.size() == 1 ? 0.0 : time_kernel(contender, *kernel, kChoiceRepeat).median;
        if (seconds < fastest_seconds) {
          fastest_seconds = seconds;
          result.worst_error = worst_error;
          fastest = std::move(kernel);
        }
      } catch (const Error& error) {
        result.note += fmt::format("{}{}{}{}", result.note.empty() ? "" : "; ", kernel->algorithm(),
                                   kernel->algorithm().empty() ? "" : ": ", error.what());
      }
      kernel.reset();  // may hold memory
    }
    require(fastest != nullptr, "{}", result.note);
    return fastest;
  }

  ReplayTimes time_kernel(const Contender& contender, BoundKernel& kernel, int64_t repeat) const {
    return time_replays(
        cuda_, contender.copies(), [&](int64_t copy) { kernel.enqueue(copy); }, repeat);
  }

  // Bytes per second.
  double read_ceiling(int64_t bytes) {
    const auto known = read_ceilings_.find(bytes);
    if (known != read_ceilings_.end()) {
      return known->second;
    }
    const double ceiling = read_bandwidth_cuda((bytes + 15) / 16 * 16, ctx_);
    read_ceilings_.emplace(bytes, ceiling);
    return ceiling;
  }

  const KernelBenchOptions& options_;
  const std::function<void(const KernelResult&)>& on_result_;
  CudaContext cuda_;
  Workspace workspace_{options_.device, kWorkspaceBytes};
  ThreadPool threads_{1};
  ExecContext ctx_{
      .device = options_.device, .workspace = workspace_, .threads = threads_, .cuda = &cuda_};
  std::map<int64_t, double> read_ceilings_;
  std::vector<KernelResult> results_;
};

}  // namespace

std::vector<std::string_view> kernel_bench_formats() {
  std::vector<std::string_view> names = benchmark_formats();
  names.insert(names.end(), {kCublas, kCublasLt, kCusparse});
  return names;
}

std::vector<KernelResult> bench_kernels(const KernelBenchOptions& options,
                                        const std::function<void(const KernelResult&)>& on_result) {
  check_options(options);
  if (options.tokens.empty()) {
    return {};
  }
  return KernelBench(options, on_result).run();
}

}  // namespace sparsellm
