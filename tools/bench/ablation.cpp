#include "tools/bench/ablation.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "tools/bench/ablation_contender.h"
#include "tools/bench/dense_baseline.h"
#include "tools/bench/product_meter.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

class AblationBench {
 public:
  AblationBench(const KernelBenchOptions& options,
                const std::function<void(const AblationResult&)>& on_result)
      : options_(options),
        on_result_(on_result),
        meter_(options.device, options.repeat),
        baseline_(meter_, options.rotation_bytes) {}

  void run() {
    for (const auto& [out, in] : options_.shapes) {
      for (const ZeroPattern& pattern : options_.patterns) {
        for (const double sparsity : options_.sparsities) {
          bench_weight({.rows = out,
                        .columns = in,
                        .dtype = options_.dtype,
                        .sparsity = sparsity,
                        .pattern = pattern,
                        .key = random_key(options_.seed, "weight")});
        }
      }
    }
  }

 private:
  ProductOperands make_operands(const OwnedTensor& weight) {
    return {weight.view, *std::max_element(options_.tokens.begin(), options_.tokens.end()),
            options_.seed, meter_.context()};
  }

  void bench_weight(const RandomOperand& matrix) {
    const OwnedTensor weight = random_matrix(matrix, meter_.context());
    const ProductOperands operands = make_operands(weight);
    if (!baseline_.measured(matrix.rows, matrix.columns)) {  // takes as long with other zeros
      baseline_.measure(operands, options_.tokens);
    }
    const std::unique_ptr<AblationContender> contender = make_ablation_contender(
        options_.formats.front(), meter_.input(operands, options_.rotation_bytes));
    for (const int64_t tokens : options_.tokens) {
      double ours = 0.0;
      for (size_t variant = 0; variant < contender->variants().size(); ++variant) {
        AblationResult result;
        result.out = matrix.rows;
        result.in = matrix.columns;
        result.tokens = tokens;
        result.sparsity = matrix.sparsity;
        result.pattern = matrix.pattern;
        bench_variant(*contender, variant, operands, result);
        ours = variant == 0 ? result.us.median : ours;
        result.fraction_of_ours = ours > 0.0 ? result.us.median / ours : 0.0;
        on_result_(result);
      }
    }
  }

  void bench_variant(AblationContender& contender, size_t index, const ProductOperands& operands,
                     AblationResult& result) {
    const AblationVariant& variant = contender.variants()[index];
    contender.choose(index);
    MeasuredProduct product = variant.computes_product
                                  ? meter_.measure(contender, operands, result.tokens)
                                  : meter_.time_unverified(contender, operands, result.tokens);
    result.variant = variant.name;
    result.computes_product = variant.computes_product;
    result.algorithm = std::move(product.algorithm);
    result.note = std::move(product.note);
    result.measured = variant.computes_product ? product.verified : result.note.empty();
    if (!result.measured) {
      return;
    }
    result.us = product.us;
    result.encoded_bytes = contender.bytes();
    result.read_gb_per_s = static_cast<double>(contender.bytes()) / product.us.median * 1e-3;
    const DenseTimes::Cell cell{.out = result.out, .in = result.in, .tokens = result.tokens};
    const auto dense = baseline_.times().best(cell, Launches::ordinary);
    const auto library = baseline_.times().best_library(cell);
    result.speedup = dense ? dense->us / product.us.median : 0.0;
    result.library_speedup = library ? library->us / product.us.median : 0.0;
  }

  const KernelBenchOptions& options_;
  const std::function<void(const AblationResult&)>& on_result_;
  ProductMeter meter_;
  DenseBaseline baseline_;
};

}  // namespace

void check_ablation_formats(const std::vector<std::string>& formats) {
  const auto known = ablation_formats();
  require(formats.size() == 1 && std::ranges::find(known, formats.front()) != known.end(),
          "--ablation takes the kernel of one of --formats {} apart, not of {}",
          fmt::join(known, " or "), fmt::join(formats, ","));
}

void bench_ablation(const KernelBenchOptions& options,
                    const std::function<void(const AblationResult&)>& on_result) {
  check_options(options);
  require(options.device.is_cuda(), "the stages of a kernel are erased on CUDA alone, not on {}",
          to_string(options.device));
  require(options.dtype == DType::f16, "the stages of a kernel are erased in f16, not in {}",
          name_of(options.dtype));
  check_ablation_formats(options.formats);
  for (const int64_t tokens : options.tokens) {
    require(tokens <= kMaxAblationTokens,
            "the stages of a kernel are erased for up to {} tokens, not {}", kMaxAblationTokens,
            tokens);
  }
  if (!options.tokens.empty()) {
    AblationBench(options, on_result).run();
  }
}

std::vector<Column> ablation_columns(std::string_view format) {
  using Kind = Column::Kind;
  return {
      {.key = "out", .title = "out"},
      {.key = "in", .title = "in"},
      {.key = "tokens", .title = "tokens"},
      {.key = "sparsity", .title = "sparsity", .decimals = 2},
      {.key = "pattern", .title = "pattern", .kind = Kind::text},
      {.key = "variant", .title = std::string(format), .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "encoded_bytes", .title = "encoded", .unit = "bytes"},
      {.key = "read_gb_per_s", .title = "read", .unit = "GB/s"},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "library_speedup", .title = "over library", .unit = "x", .decimals = 2},
      {.key = "percent_of_ours", .title = "of ours", .unit = "%", .decimals = 1},
      {.key = "verified", .title = "verified", .kind = Kind::text},
      {.key = "algorithm", .title = "configuration", .kind = Kind::text},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row ablation_row(const AblationResult& result) {
  Row row{result.out,    result.in, result.tokens, result.sparsity, to_string(result.pattern),
          result.variant};
  if (result.measured) {
    row.insert(row.end(),
               {result.us, result.encoded_bytes, result.read_gb_per_s, known_cell(result.speedup),
                known_cell(result.library_speedup), known_cell(100.0 * result.fraction_of_ours)});
  } else {
    row.resize(row.size() + 6);
  }
  std::string verified = "no: computes no product";
  if (result.computes_product) {
    verified = result.measured ? "yes" : "NOT VERIFIED";
  }
  row.insert(row.end(), {std::move(verified), result.algorithm, result.note});
  return row;
}

void report_ablation(const KernelBenchOptions& options, ReportWriter& report) {
  check_ablation_formats(options.formats);
  report.begin_table("ablation", ablation_columns(options.formats.front()));
  bench_ablation(options, [&](const AblationResult& result) {
    throw_if_interrupted();
    report.add_row(ablation_row(result));
  });
}

}  // namespace sparsellm
