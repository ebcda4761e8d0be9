#include "tools/bench/choices.h"

#include <string>
#include <utility>
#include <vector>

#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

std::vector<Column> choice_columns() {
  using Kind = Column::Kind;
  return {{.key = "layers", .title = "layers"},
          {.key = "out", .title = "out"},
          {.key = "in", .title = "in"},
          {.key = "density_percent", .title = "density", .unit = "%", .decimals = 1},
          {.key = "stored", .title = "stored", .kind = Kind::text},
          {.key = "format", .title = "format", .kind = Kind::text},
          {.key = "bytes", .title = "of a layer", .unit = "bytes"},
          {.key = "time_us", .title = "time", .unit = "us", .decimals = 1},
          {.key = "taken", .title = "taken", .kind = Kind::text},
          {.key = "by", .title = "by", .kind = Kind::text},
          {.key = "note", .title = "note", .kind = Kind::text}};
}

// Of a format that was tried, or is taken.
Row row_of(const FormatChoice& choice, const FormatTime& time) {
  const LayerKind& kind = choice.kind;
  const bool taken = time.in == choice.in;
  std::string by(taken ? name_of(choice.by) : std::string_view());
  if (taken && choice.for_memory) {
    by += ", for its size";
  }
  return {kind.count(),
          kind.layer.rows,
          kind.layer.columns,
          100.0 * kind.weight.density,
          kind.weight.stored,
          to_string(time.in),
          choice.bytes(time.in),
          time.seconds ? Cell(*time.seconds * kMicroseconds) : Cell(),
          taken ? "yes" : "no",
          std::move(by),
          time.why_not.empty() ? std::string() : "not measured: " + time.why_not};
}

Row row_of(const FormatChoice& choice, const FormatChoice::NotTried& other) {
  const LayerKind& kind = choice.kind;
  return {kind.count(),
          kind.layer.rows,
          kind.layer.columns,
          100.0 * kind.weight.density,
          kind.weight.stored,
          other.format,
          Cell(),
          Cell(),
          "no",
          "",
          "not tried: " + other.why};
}

}  // namespace

void report_choices(std::span<const FormatChoice> choices, ReportWriter& report) {
  report.begin_table("format choices", choice_columns());
  for (const FormatChoice& choice : choices) {
    for (const FormatTime& time : choice.times) {
      report.add_row(row_of(choice, time));
    }
    if (choice.times.empty()) {
      report.add_row(row_of(choice, FormatTime{.in = choice.in}));
    }
    for (const FormatChoice::NotTried& other : choice.not_tried) {
      report.add_row(row_of(choice, other));
    }
  }
}

}  // namespace sparsellm
