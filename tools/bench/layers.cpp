#include "tools/bench/layers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "tools/bench/dense_baseline.h"
#include "tools/bench/format_contender.h"
#include "tools/bench/product_meter.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

double density_of(const Tensor& dense) {
  const OwnedTensor host =
      allocate_tensor({}, dense.dtype(), {dense.size(0), dense.size(1)}, "a weight on the host");
  copy_bytes({}, host.view.raw(), dense.device(), dense.raw(), dense.bytes());
  ThreadPool threads;
  return static_cast<double>(count_nonzeros(host.view, threads)) /
         static_cast<double>(dense.element_count());
}

class LayerBench {
 public:
  LayerBench(const LayerBenchOptions& options, const LayerSource& source,
             const std::function<void(const LayerResult&)>& on_result)
      : options_(options),
        source_(source),
        on_result_(on_result),
        meter_(source.device, options.repeat, options.sums),
        baseline_(meter_, options.rotation_bytes) {}

  std::vector<LayerResult> run() {
    if (options_.blocks == LayerBenchOptions::Blocks::alike) {
      for (const AlikeBlocks& alike : source_.alike) {
        bench_block(alike.block, alike.count);
      }
    } else {
      for (int64_t block = 0; block < source_.config.num_layers; ++block) {
        bench_block(block, 1);
      }
    }
    return std::move(results_);
  }

 private:
  static constexpr int64_t kLayersOfABlock = 4;

  void bench_block(int64_t block, int64_t count) {
    show_progress();
    const DecoderLayer layer = source_.load(block);
    for (const DecoderLayer::NamedLinear& named : layer.linears()) {
      LayerResult result;
      result.block = block;
      result.name = named.name;
      result.count = count;
      bench_weight(*named.linear->weight, result);
      ++done_;
      show_progress();
    }
  }

  void show_progress() {
    const bool all = options_.blocks == LayerBenchOptions::Blocks::all;
    if (options_.progress) {
      options_.progress(
          done_, kLayersOfABlock * (all ? source_.config.num_layers : std::ssize(source_.alike)));
    }
  }

  void bench_weight(const WeightMatrix& weight, LayerResult result) {
    result.pattern = source_.pattern;
    result.out = weight.out();
    result.in = weight.in();
    result.format = weight.format();
    result.bytes = weight.bytes();
    result.dense_bytes = weight.out() * weight.in() * size_of(weight.dtype());
    try {
      measure(weight, result);
    } catch (const OutOfMemory& error) {
      result.note = error.what();
      for (const int64_t tokens : options_.tokens) {
        result.tokens = tokens;
        deliver(result);
      }
    }
  }

  void measure(const WeightMatrix& weight, LayerResult result) {
    ExecContext& ctx = meter_.context();
    const OwnedTensor dense = allocate_tensor(
        ctx.device, weight.dtype(), {weight.out(), weight.in()}, "the elements of a weight");
    weight.expand({.begin = 0, .count = weight.out()}, dense.view, ctx);
    if (ctx.cuda != nullptr) {
      ctx.cuda->synchronize();
    }
    result.density = density_of(dense.view);
    const ProductOperands operands(
        dense.view, *std::max_element(options_.tokens.begin(), options_.tokens.end()),
        options_.seed, ctx);
    if (!baseline_.measured(result.out, result.in)) {
      baseline_.measure(operands, options_.tokens);
    }
    FormatContender contender(weight, meter_.input(operands, options_.rotation_bytes));
    DenseOpponents opponents(baseline_.times(), meter_, operands, options_.rotation_bytes);
    for (const int64_t tokens : options_.tokens) {
      MeasuredProduct product =
          meter_.measure(contender, operands, tokens, opponents.fastest(tokens));
      result.tokens = tokens;
      result.verified = product.verified;
      const bool overlapped = product.overlapped.has_value();
      result.us = product.verified ? product.overlapped.value_or(product.us) : Spread{};
      compare(product, result);
      result.algorithm = std::move(overlapped ? product.overlapped_algorithm : product.algorithm);
      result.note = std::move(product.note);
      deliver(result);
    }
  }

  void compare(const MeasuredProduct& product, LayerResult& result) const {
    const DenseTimes::Cell cell{.out = result.out, .in = result.in, .tokens = result.tokens};
    const bool overlapped = product.overlapped.has_value();
    const std::optional<Turns>& turns = overlapped ? product.overlapped_turns : product.turns;
    const auto best =
        baseline_.times().best(cell, overlapped ? Launches::overlapping : Launches::ordinary);
    const auto library = baseline_.times().best_library(cell);
    const bool known = product.verified && turns && best;
    result.baseline = known ? best->contender : "";
    result.dense_us = known ? turns->baseline.median : 0.0;
    result.verdict = known ? std::optional(turns->verdict) : std::nullopt;
    result.library_us = library ? library->us : 0.0;
  }

  void deliver(const LayerResult& result) {
    on_result_(result);
    results_.push_back(result);
  }

  const LayerBenchOptions& options_;
  const LayerSource& source_;
  const std::function<void(const LayerResult&)>& on_result_;
  ProductMeter meter_;
  DenseBaseline baseline_;
  std::vector<LayerResult> results_;
  int64_t done_ = 0;
};

Cell quotient(double a, double b) { return a > 0.0 && b > 0.0 ? Cell(a / b) : Cell(); }

std::vector<Column> total_columns() {
  return {
      {.key = "tokens", .title = "tokens"},
      {.key = "pattern", .title = "pattern", .kind = Column::Kind::text},
      {.key = "layers", .title = "layers"},
      {.key = "failed", .title = "failed"},
      {.key = "bytes", .title = "encoded", .unit = "bytes"},
      {.key = "percent_of_dense", .title = "of dense", .unit = "%", .decimals = 1},
      {.key = "time_us", .title = "time", .unit = "us", .decimals = 1},
      {.key = "dense_us", .title = "best dense", .unit = "us", .decimals = 1},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "library_us", .title = "library", .unit = "us", .decimals = 1},
      {.key = "library_speedup", .title = "over library", .unit = "x", .decimals = 2},
  };
}

}  // namespace

std::vector<LayerResult> bench_layers(const LayerBenchOptions& options, const LayerSource& source,
                                      const std::function<void(const LayerResult&)>& on_result) {
  require(!options.tokens.empty(), "layers are benchmarked for some number of tokens");
  for (const int64_t tokens : options.tokens) {
    require(tokens > 0, "a layer with {} tokens", tokens);
  }
  return LayerBench(options, source, on_result).run();
}

std::vector<LayerTotals> total_layers(const std::vector<LayerResult>& results) {
  std::map<int64_t, LayerTotals> totals;
  for (const LayerResult& result : results) {
    LayerTotals& total = totals[result.tokens];
    if (total.layers == 0) {
      total.tokens = result.tokens;
      total.pattern = result.pattern;
    }
    total.layers += result.count;
    total.bytes += result.count * result.bytes;
    total.dense_bytes += result.count * result.dense_bytes;
    if (result.verified && result.dense_us > 0.0) {
      total.us += static_cast<double>(result.count) * result.us.median;
      total.dense_us += static_cast<double>(result.count) * result.dense_us;
      if (total.library_us && result.library_us > 0.0) {
        *total.library_us += static_cast<double>(result.count) * result.library_us;
      } else {
        total.library_us.reset();
      }
    } else {
      total.failed += result.count;
    }
  }
  std::vector<LayerTotals> rows;
  rows.reserve(totals.size());
  for (const auto& [tokens, total] : totals) {
    rows.push_back(total);
  }
  return rows;
}

std::vector<Column> layer_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "block", .title = "block"},
      {.key = "layer", .title = "layer", .kind = Kind::text},
      {.key = "layers", .title = "layers"},
      {.key = "out", .title = "out"},
      {.key = "in", .title = "in"},
      {.key = "density_percent", .title = "density", .unit = "%", .decimals = 1},
      {.key = "pattern", .title = "pattern", .kind = Kind::text},
      {.key = "format", .title = "format", .kind = Kind::text},
      {.key = "bytes", .title = "encoded", .unit = "bytes"},
      {.key = "percent_of_dense", .title = "of dense", .unit = "%", .decimals = 1},
      {.key = "tokens", .title = "tokens"},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "baseline", .title = "best dense", .kind = Kind::text},
      {.key = "dense_us", .title = "best dense time", .unit = "us", .decimals = 1},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "verdict", .title = "verdict", .kind = Kind::text},
      {.key = "library_us", .title = "library", .unit = "us", .decimals = 1},
      {.key = "library_speedup", .title = "over library", .unit = "x", .decimals = 2},
      {.key = "algorithm", .title = "algorithm", .kind = Kind::text},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row layer_row(const LayerResult& result) {
  Row row{result.block, result.name, result.count, result.out, result.in};
  row.insert(
      row.end(),
      {result.verified ? Cell(100.0 * result.density) : known_cell(100.0 * result.density),
       result.pattern, result.format, result.bytes,
       quotient(100.0 * static_cast<double>(result.bytes), static_cast<double>(result.dense_bytes)),
       result.tokens});
  row.insert(row.end(), {result.verified ? Cell(result.us) : Cell(), result.baseline,
                         known_cell(result.dense_us), quotient(result.dense_us, result.us.median),
                         verdict_cell(result.verdict)});
  row.insert(row.end(),
             {known_cell(result.library_us), quotient(result.library_us, result.us.median),
              result.algorithm, result.verified ? result.note : "NOT VERIFIED: " + result.note});
  return row;
}

void report_layer_totals(const std::vector<LayerResult>& results, ReportWriter& report) {
  report.begin_table("layer totals", total_columns());
  for (const LayerTotals& total : total_layers(results)) {
    report.add_row(
        {total.tokens, total.pattern, total.layers, total.failed, total.bytes,
         quotient(100.0 * static_cast<double>(total.bytes), static_cast<double>(total.dense_bytes)),
         known_cell(total.us), known_cell(total.dense_us), quotient(total.dense_us, total.us),
         known_cell(total.library_us.value_or(0.0)),
         quotient(total.library_us.value_or(0.0), total.us)});
  }
}

void report_layers(const LayerBenchOptions& options, const LayerSource& source,
                   ReportWriter& report) {
  report.begin_table("layers", layer_columns());
  const std::vector<LayerResult> results =
      bench_layers(options, source, [&](const LayerResult& result) {
        throw_if_interrupted();
        report.add_row(layer_row(result));
      });
  report_layer_totals(results, report);
}

}  // namespace sparsellm
