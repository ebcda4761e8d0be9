#include <string>
#include <utility>

#include "models/activation_sparsity.h"
#include "tools/bench/mlp.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

constexpr int kFactorColumn = 4;  // before that of the part

Cell percent_of(int64_t part, int64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

Cell count_cell(int64_t count) { return count > 0 ? Cell(count) : Cell(); }

Row row_of(const MlpResult& result, bool with_factor) {
  const MlpShape& shape = result.shape;
  Row row{shape.neurons, shape.hidden, shape.gated ? "gated" : "plain", result.tokens};
  const auto add = [&](std::initializer_list<Cell> cells) { row.insert(row.end(), cells); };
  if (with_factor) {
    add({static_cast<double>(result.alpha_factor)});
  }
  add({std::string(result.subject().name())});
  if (result.verified) {
    const MlpComparison& plain = result.compared;
    const MlpComparison& overlapped = result.overlapped_compared;
    add({result.us, result.overlapped_us ? Cell(*result.overlapped_us) : Cell()});
    add({known_cell(plain.dense_us), known_cell(plain.speedup), verdict_cell(plain.verdict)});
    add({known_cell(overlapped.dense_us), known_cell(overlapped.speedup),
         verdict_cell(overlapped.verdict)});
    add({100.0 * result.shares.predicted, 100.0 * result.shares.zeros,
         percent_of(result.shares.first_union, shape.neurons),
         percent_of(result.shares.active_union, shape.neurons)});
    add({std::string(name_of(result.prediction.votes)),
         static_cast<double>(result.prediction.alpha), static_cast<double>(result.threshold)});
    add({result.bytes_read, known_cell(result.read_gb_per_s),
         known_cell(100.0 * result.fraction_of_read_ceiling), count_cell(result.sign_bytes),
         count_cell(result.xors)});
  } else {
    row.resize(row.size() + 20);
  }
  add({result.verified ? Cell(result.worst_error) : known_cell(result.worst_error),
       result.verified ? result.note : "NOT VERIFIED: " + result.note});
  return row;
}

}  // namespace

std::vector<Column> mlp_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "neurons", .title = "neurons"},
      {.key = "hidden", .title = "hidden"},
      {.key = "kind", .title = "kind", .kind = Kind::text},
      {.key = "tokens", .title = "tokens"},
      {.key = "part", .title = "part", .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "overlapped_us",
       .title = "overlapped",
       .unit = "us",
       .kind = Kind::spread,
       .decimals = 1},
      {.key = "dense_us", .title = "dense time", .unit = "us", .decimals = 1},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "verdict", .title = "verdict", .kind = Kind::text},
      {.key = "overlapped_dense_us", .title = "dense time overlapped", .unit = "us", .decimals = 1},
      {.key = "overlapped_speedup", .title = "overlapped speed-up", .unit = "x", .decimals = 2},
      {.key = "overlapped_verdict", .title = "overlapped verdict", .kind = Kind::text},
      {.key = "predicted_percent", .title = "predicted", .unit = "%", .decimals = 1},
      {.key = "zeros_percent", .title = "zeros", .unit = "%", .decimals = 1},
      {.key = "first_union_percent", .title = "union not predicted", .unit = "%", .decimals = 1},
      {.key = "active_union_percent", .title = "union active", .unit = "%", .decimals = 1},
      {.key = "votes", .title = "votes", .kind = Kind::text},
      {.key = "alpha", .title = "alpha", .decimals = 4},
      {.key = "threshold", .title = "threshold", .decimals = 3},
      {.key = "bytes_read", .title = "weights read", .unit = "bytes"},
      {.key = "read_gb_per_s", .title = "read", .unit = "GB/s"},
      {.key = "percent_of_ceiling", .title = "of ceiling", .unit = "%", .decimals = 1},
      {.key = "sign_bytes", .title = "signs", .unit = "bytes"},
      {.key = "xors", .title = "XORs"},
      {.key = "worst_error", .title = "error", .unit = "of tolerance", .decimals = 2},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

std::vector<Column> mlp_ablation_columns() {
  std::vector<Column> columns = mlp_columns();
  columns.insert(columns.begin() + kFactorColumn,
                 {.key = "alpha_factor", .title = "alpha factor", .decimals = 2});
  return columns;
}

Row mlp_row(const MlpResult& result) { return row_of(result, false); }
Row mlp_ablation_row(const MlpResult& result) { return row_of(result, true); }

void report_mlps(const MlpBenchOptions& options, ReportWriter& report) {
  if (options.ablation) {
    report.begin_table("mlp ablation", mlp_ablation_columns());
  } else {
    report.begin_table("mlp", mlp_columns());
  }
  bench_mlps(options, [&](const MlpResult& result) {
    throw_if_interrupted();
    report.add_row(options.ablation ? mlp_ablation_row(result) : mlp_row(result));
  });
}

}  // namespace sparsellm
