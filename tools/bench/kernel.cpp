#include "tools/bench/kernel.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "sparse/dense/dense.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tools/bench/cpu_clock.h"
#include "tools/bench/dense_baseline.h"
#include "tools/bench/format_contender.h"
#include "tools/bench/fp8_rounding.h"
#include "tools/bench/library_contenders.h"
#include "tools/bench/product_meter.h"
#include "tools/bench/stored_values.h"

namespace sparsellm {
namespace {

constexpr std::string_view kCusparse = "cusparse";

bool contains(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::unique_ptr<Contender> make_contender(std::string_view format, const ContenderInput& input) {
  return format == kCusparse ? make_cusparse_contender(input)
                             : make_dense_or_format_contender(format, input);
}

// What the weights of a run are rounded to, so that all formats have the same values: the narrow
// ones that are chosen, or those of a format that always rounds; empty: nothing.
std::string values_of(const KernelBenchOptions& options) {
  if (has_narrow_values(options.records)) {
    return options.records;
  }
  const auto rounds = std::ranges::find_if(options.formats, always_rounds);
  return rounds == options.formats.end() ? std::string() : records_in(*rounds, {}).layout;
}

class KernelBench {
 public:
  KernelBench(const KernelBenchOptions& options,
              const std::function<void(const KernelResult&)>& on_result)
      : options_(options),
        on_result_(on_result),
        meter_(options.device, options.repeat, Sums::fastest, options.threads) {
    meter_.context().isa = options.cpu_isa;
    meter_.set_profile(options.profile);
    for (const std::string& format : options.formats) {
      if (!contains(dense_contenders(options.device), format)) {
        sparse_.push_back(format);
      }
    }
    for (const ZeroPattern& pattern : options.patterns) {
      for (const double sparsity : options.sparsities) {
        zeros_.push_back({.sparsity = sparsity, .pattern = pattern});
      }
    }
  }

  std::vector<KernelResult> run() {
    for (const auto& shape : options_.shapes) {
      for (const Zeros& zeros : zeros_) {
        bench_weight(shape, zeros);
      }
    }
    return std::move(results_);
  }

 private:
  using Shape = std::pair<int64_t, int64_t>;
  using Results = std::vector<KernelResult>;  // of one format, by number of tokens

  struct Zeros {
    double sparsity = 0.0;
    ZeroPattern pattern;
  };

  struct Weight {
    OwnedTensor values;
    ProductOperands operands;
  };

  static DenseTimes::Cell cell_of(const KernelResult& result) {
    return {.out = result.out, .in = result.in, .tokens = result.tokens};
  }

  // What is dense on the first weight of a shape alone: the others take as long.
  void bench_weight(const Shape& shape, const Zeros& zeros) {
    const bool is_first = &zeros == &zeros_.front();
    if (!is_first && sparse_.empty()) {
      return;
    }
    std::string problem;
    const std::unique_ptr<Weight> weight = make_weight(shape, zeros, problem);
    if (is_first) {
      bench_dense(shape, zeros, weight.get(), problem);
    }
    bench_sparse(shape, zeros, weight.get(), problem);
  }

  void bench_dense(const Shape& shape, const Zeros& zeros, const Weight* weight,
                   const std::string& problem) {
    std::vector<Results> dense;
    for (const std::string_view format : dense_contenders(options_.device)) {
      dense.push_back(bench(shape, zeros, format, weight, problem, nullptr));
    }
    for (Results& results : dense) {
      deliver_dense(std::move(results));
    }
    if (!values_of(options_).empty()) {
      bench_narrow_dense(shape, zeros, weight, problem);
    }
  }

  void deliver_dense(Results results) {
    for (KernelResult& result : results) {
      compare_dense(result);
    }
    deliver(std::move(results));
  }

  void bench_narrow_dense(const Shape& shape, const Zeros& zeros, const Weight* weight,
                          std::string problem) {
    if (options_.device.is_cuda()) {
      const std::unique_ptr<Weight> fp8 =
          weight != nullptr ? try_make([&] { return make_fp8_weight(*weight); }, problem) : nullptr;
      deliver_dense(bench(shape, zeros, kFp8Contender, fp8.get(), problem, nullptr));
    }
    Results ceiling = results_of(shape, zeros, kInt4Ceiling);
    for (KernelResult& result : ceiling) {
      compute_int4(result);
    }
    deliver_dense(std::move(ceiling));
  }

  void compute_int4(KernelResult& result) {
    try {
      result.encoded_bytes = dense_int4_bytes(result.out, result.in);
      const double bytes_per_second = meter_.read_ceiling(result.encoded_bytes);
      const double us = static_cast<double>(result.encoded_bytes) / bytes_per_second * 1e6;
      result.us = {.median = us, .min = us, .max = us};
      result.fraction_of_dense = static_cast<double>(result.encoded_bytes) /
                                 (static_cast<double>(result.out) * static_cast<double>(result.in) *
                                  static_cast<double>(size_of(options_.dtype)));
      result.read_gb_per_s = bytes_per_second * 1e-9;
      result.fraction_of_read_ceiling = 1.0;
      result.computed = true;
      result.note =
          "computed, not measured: 4.125 bits a weight at the read ceiling, nothing else read";
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {
      meter_.wait();
      result.note = error.what();
    }
  }

  void bench_sparse(const Shape& shape, const Zeros& zeros, const Weight* weight,
                    const std::string& problem) {
    std::unique_ptr<DenseOpponents> opponents;
    if (weight != nullptr) {
      opponents = std::make_unique<DenseOpponents>(dense_times_, meter_, weight->operands,
                                                   options_.rotation_bytes);
    }
    for (const std::string& format : sparse_) {
      deliver(bench(shape, zeros, format, weight, problem, opponents.get()));
    }
  }

  std::unique_ptr<Weight> make_weight(const Shape& shape, const Zeros& zeros,
                                      std::string& problem) {
    return try_make(
        [&] {
          ExecContext& ctx = meter_.context();
          OwnedTensor values = random_matrix({.rows = shape.first,
                                              .columns = shape.second,
                                              .dtype = options_.dtype,
                                              .sparsity = zeros.sparsity,
                                              .pattern = zeros.pattern,
                                              .key = random_key(options_.seed, "weight")},
                                             ctx);
          if (const std::string narrow = values_of(options_); !narrow.empty()) {
            round_to_values(narrow, values.view, ctx);
          }
          ProductOperands operands(values.view, max_tokens(), options_.seed, ctx);
          return Weight{.values = std::move(values), .operands = std::move(operands)};
        },
        problem);
  }

  // The same weight and inputs, rounded to FP8.
  Weight make_fp8_weight(const Weight& weight) {
    ExecContext& ctx = meter_.context();
    const Tensor& from = weight.values.view;
    OwnedTensor values =
        allocate_tensor(ctx.device, from.dtype(), {from.size(0), from.size(1)}, "a weight in FP8");
    copy_bytes(ctx.device, values.view.raw(), ctx.device, from.raw(), from.bytes());
    OwnedTensor x = random_inputs(from, round_up_to_fp8_columns(max_tokens()), options_.seed, ctx);
    round_to_fp8_cuda(values.view, ctx);
    round_to_fp8_cuda(x.view, ctx);
    ProductOperands operands(values.view, std::move(x), ctx);
    return {.values = std::move(values), .operands = std::move(operands)};
  }

  int64_t max_tokens() const {
    return *std::max_element(options_.tokens.begin(), options_.tokens.end());
  }

  // Nothing, and the reason, where it cannot be made.
  template <class Make>
  static std::unique_ptr<Weight> try_make(Make&& make, std::string& problem) {
    try {
      return std::make_unique<Weight>(make());
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {
      problem = error.what();
      return nullptr;
    }
  }

  Results results_of(const Shape& shape, const Zeros& zeros, std::string_view format) const {
    Results results;
    for (const int64_t tokens : options_.tokens) {
      KernelResult& result = results.emplace_back();
      result.out = shape.first;
      result.in = shape.second;
      result.tokens = tokens;
      result.sparsity = zeros.sparsity;
      result.pattern = zeros.pattern;
      result.format = format;
    }
    return results;
  }

  // What is dense adds to dense_times_, and has no opponents.
  Results bench(const Shape& shape, const Zeros& zeros, std::string_view format,
                const Weight* weight, const std::string& problem, DenseOpponents* opponents) {
    Results results = results_of(shape, zeros, format);
    for (KernelResult& result : results) {
      result.note = problem;
    }
    if (weight != nullptr) {
      try {
        ContenderInput input = meter_.input(weight->operands, options_.rotation_bytes);
        input.layout = format == general_sparse::kName
                           ? options_.layout
                           : records_in(format, options_.records).layout;
        const std::unique_ptr<Contender> contender = make_contender(format, input);
        for (KernelResult& result : results) {
          try {
            if (format == kFp8Contender) {
              bench_fp8_tokens(*contender, weight->operands, result);
            } else {
              bench_tokens(*contender, weight->operands, result.tokens, opponents, result);
            }
          } catch (const DeviceLost&) {
            throw;
          } catch (const std::exception& error) {
            result.note = error.what();
          }
        }
      } catch (const DeviceLost&) {
        throw;  // nothing is measured any more
      } catch (const std::exception& error) {
        for (KernelResult& result : results) {
          result.note = error.what();
        }
      }
    }
    return results;
  }

  // Some algorithms need a multiple of 16 columns, and that may be faster, too.
  void bench_fp8_tokens(Contender& contender, const ProductOperands& operands,
                        KernelResult& result) {
    KernelResult padded = result;
    bench_tokens(contender, operands, result.tokens, nullptr, result);
    const int64_t columns = round_up_to_fp8_columns(result.tokens);
    if (columns == result.tokens) {
      return;
    }
    bench_tokens(contender, operands, columns, nullptr, padded);
    if (padded.verified && (!result.verified || padded.us.median < result.us.median)) {
      result = std::move(padded);
      result.note += fmt::format("; {} columns for {} tokens", columns, result.tokens);
    }
  }

  static int64_t round_up_to_fp8_columns(int64_t tokens) {
    constexpr int64_t kColumns = 16;
    return checked_add(tokens, kColumns - 1, "columns of a product in FP8") / kColumns * kColumns;
  }

  // With so many columns, of which the first are those of result.tokens.
  void bench_tokens(Contender& contender, const ProductOperands& operands, int64_t columns,
                    DenseOpponents* opponents, KernelResult& result) {
    result.encoded_bytes = contender.bytes();
    result.fraction_of_dense =
        static_cast<double>(contender.bytes()) / static_cast<double>(operands.weight().bytes());
    const MeasuredProduct product =
        meter_.measure(contender, operands, columns,
                       opponents != nullptr ? opponents->fastest(result.tokens) : Opponents{});
    result.worst_error = product.worst_error;
    result.note = product.note;
    result.algorithm = product.algorithm;
    if (!product.verified) {
      return;
    }
    const double ceiling = meter_.read_ceiling(result.encoded_bytes);
    result.verified = true;
    if (!is_baseline(result.format)) {
      result.note += fmt::format(
          "{}for information: {}", result.note.empty() ? "" : "; ",
          result.format == kFp8Contender
              ? "x and the weight are rounded to e4m3, x before it is timed"
              : fmt::format("sums of parts may be rounded to {}", name_of(options_.dtype)));
    }
    result.us = product.us;
    result.overlapped_us = product.overlapped;
    if (opponents == nullptr) {
      dense_times_.add(result.format, cell_of(result), product);
    }
    compare_turns(product, result);
    const double seconds = product.us.median * 1e-6;
    const double bytes_per_second = static_cast<double>(result.encoded_bytes) / seconds;
    result.read_gb_per_s = bytes_per_second * 1e-9;
    result.fraction_of_read_ceiling = bytes_per_second / ceiling;
    result.tflops = 2.0 * static_cast<double>(result.out) * static_cast<double>(result.in) *
                    static_cast<double>(result.tokens) / seconds * 1e-12;
    if (!options_.device.is_cuda()) {
      result.cycles_per_element =
          seconds * measure_cpu_clock() * meter_.context().threads.size() /
          (static_cast<double>(result.out) * static_cast<double>(result.in));
    }
  }

  void compare_turns(const MeasuredProduct& product, KernelResult& result) const {
    const auto compare = [&](const std::optional<Turns>& turns, Launches launches,
                             KernelComparison& compared) {
      if (turns) {
        compared.baseline = dense_times_.best(cell_of(result), launches)->contender;
        compared.baseline_us = turns->baseline.median;
        compared.speedup = turns->speedup();
        compared.verdict = turns->verdict;
      }
    };
    compare(product.turns, Launches::ordinary, result.compared);
    compare(product.overlapped_turns, Launches::overlapping, result.overlapped_compared);
  }

  // What is dense is not measured again.
  void compare_dense(KernelResult& result) const {
    const auto compare = [&](const Spread& us, Launches launches, KernelComparison& compared) {
      if (const std::optional<FastestDense> best = dense_times_.best(cell_of(result), launches)) {
        compared.baseline = best->contender;
        compared.baseline_us = best->us;
        compared.speedup = best->us / us.median;
      }
    };
    if (result.has_times()) {
      compare(result.us, Launches::ordinary, result.compared);
    }
    if (result.overlapped_us) {
      compare(*result.overlapped_us, Launches::overlapping, result.overlapped_compared);
    }
  }

  void deliver(Results results) {
    for (KernelResult& result : results) {
      if (const auto library = dense_times_.best_library(cell_of(result))) {
        result.library_us = library->us;
      }
      if (result.has_times()) {
        result.compared.library_speedup = result.library_us / result.us.median;
      }
      if (result.overlapped_us) {
        result.overlapped_compared.library_speedup =
            result.library_us / result.overlapped_us->median;
      }
      on_result_(result);
      results_.push_back(std::move(result));
    }
  }

  const KernelBenchOptions& options_;
  const std::function<void(const KernelResult&)>& on_result_;
  ProductMeter meter_;
  std::vector<std::string> sparse_;  // formats
  std::vector<Zeros> zeros_;
  DenseTimes dense_times_;  // of the first weight of each shape
  std::vector<KernelResult> results_;
};

}  // namespace

bool KernelResult::is_dense() const {
  return is_narrow_dense(format) ||
         contains(dense_contenders({.kind = Device::Kind::cuda}), format);
}

std::vector<std::string_view> kernel_bench_formats(Device device) {
  std::vector<std::string_view> names = dense_contenders(device);
  for (const WeightFormat* format : weight_formats()) {
    if (format->name() != dense_format().name()) {
      names.push_back(format->name());
    }
  }
  if (device.is_cuda()) {
    names.push_back(kCusparse);
  }
  return names;
}

void check_options(const KernelBenchOptions& options) {
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
    for (const ZeroPattern& pattern : options.patterns) {
      const std::string reason = why_not(pattern, sparsity);
      require(reason.empty(), "there is no pattern {}", reason);
    }
  }
  const std::vector<std::string_view> known = kernel_bench_formats(options.device);
  for (const std::string& format : options.formats) {
    require(contains(known, format), "unknown format '{}'; on {} use {}", format,
            to_string(options.device), fmt::join(known, ", "));
  }
  require(options.layout.empty() || contains(options.formats, general_sparse::kName),
          "a layout is for the format {}, which is not among the formats", general_sparse::kName);
  general_sparse_format().check_layout(options.layout);
  const std::string values = values_of(options);
  const bool rounds = std::ranges::any_of(options.formats, always_rounds);
  require(options.records.empty() || contains(options.formats, tca_bme_format().name()) ||
              (rounds && values == options.records),
          "records are of the format {}, which is not among the formats", tca_bme_format().name());
  check_records(options.records);
  for (const std::string& format : options.formats) {
    require(!always_rounds(format) || holds_values(format, values),
            "the format {} does not hold values of {}, which the others of the run have", format,
            values);
  }
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
