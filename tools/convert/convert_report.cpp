#include "tools/convert/convert_report.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/foreign_tensors.h"
#include "sparse/registry.h"
#include "tools/cli/args.h"

namespace sparsellm {
namespace {

double ratio(int64_t a, int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
}
double percent_zeros(int64_t nonzeros, int64_t elements) {
  return elements > 0 ? 100.0 - 100.0 * ratio(nonzeros, elements) : 0.0;
}

// Whether a GPU multiplies by weights in the format; "" stands for several formats.
std::string for_gpu(const std::string& format) {
  return format.empty()                                                ? ""
         : weight_format(format).runs_on({.kind = Device::Kind::cuda}) ? "yes"
                                                                       : "no";
}

// What is summed up over layers.
struct Sum {
  std::string kind;
  std::string method;
  std::string format;
  int64_t layers = 0;
  int64_t elements = 0;
  int64_t stored_nonzeros = 0;
  int64_t nonzeros = 0;
  int64_t dense_bytes = 0;
  int64_t formula_bytes = 0;
  int64_t bytes = 0;

  void add(const ConvertedWeight& weight) {
    layers += 1;
    elements += weight.elements();
    stored_nonzeros += weight.stored_nonzeros;
    nonzeros += weight.nonzeros;
    dense_bytes += weight.dense_bytes;
    formula_bytes += weight.formula_bytes;
    bytes += weight.bytes;
  }
};

enum class Same : uint8_t { kind_and_method, kind_method_and_format };

// In the order of their first layers.
std::vector<Sum> groups_of(const Conversion& conversion, Same same) {
  std::vector<Sum> groups;
  for (const ConvertedWeight& weight : conversion.weights) {
    const std::string kind = kind_of(weight.layer);
    const std::string format = same == Same::kind_method_and_format ? weight.format : std::string();
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Sum& candidate) {
      return candidate.kind == kind && candidate.method == weight.method &&
             candidate.format == format;
    });
    if (group == groups.end()) {
      group =
          groups.insert(groups.end(), {.kind = kind, .method = weight.method, .format = format});
    }
    group->add(weight);
  }
  return groups;
}

Sum total_of(const Conversion& conversion) {
  Sum total{.kind = "linear layers", .method = "", .format = ""};
  for (const ConvertedWeight& weight : conversion.weights) {
    total.add(weight);
  }
  return total;
}

std::vector<Column> group_columns() {
  using Kind = Column::Kind;
  return {{.key = "layers", .title = "linear layers", .kind = Kind::text},
          {.key = "count", .title = "count"},
          {.key = "prune", .title = "pruned by", .kind = Kind::text},
          {.key = "format", .title = "format", .kind = Kind::text},
          {.key = "gpu", .title = "for a GPU", .kind = Kind::text},
          {.key = "input_zeros_percent", .title = "zeros before", .unit = "%", .decimals = 2},
          {.key = "zeros_percent", .title = "zeros", .unit = "%", .decimals = 2},
          {.key = "dense_mib", .title = "dense", .unit = "MiB", .decimals = 2},
          {.key = "stored_mib", .title = "stored", .unit = "MiB", .decimals = 2},
          {.key = "over_formula_percent", .title = "over formula", .unit = "%", .decimals = 2},
          {.key = "compression", .title = "compression", .unit = "x", .decimals = 3},
          {.key = "model_percent", .title = "of the model", .unit = "%", .decimals = 1}};
}

Row group_row(const Sum& sum, int64_t model_bytes) {
  return {sum.kind,
          sum.layers,
          sum.method,
          sum.format,
          for_gpu(sum.format),
          percent_zeros(sum.stored_nonzeros, sum.elements),
          percent_zeros(sum.nonzeros, sum.elements),
          mib(sum.dense_bytes),
          mib(sum.bytes),
          100.0 * ratio(sum.bytes - sum.formula_bytes, sum.formula_bytes),
          ratio(sum.dense_bytes, sum.bytes),
          100.0 * ratio(sum.bytes, model_bytes)};
}

int64_t model_bytes(const Conversion& conversion) {
  return conversion.bytes() + conversion.other_bytes;
}

void add_groups(const Conversion& conversion, ReportWriter& report) {
  for (const Sum& group : groups_of(conversion, Same::kind_method_and_format)) {
    report.add_row(group_row(group, model_bytes(conversion)));
  }
  report.add_row(group_row(total_of(conversion), model_bytes(conversion)));
}

std::vector<Column> inspection_columns(std::span<const Inspection> inspections) {
  using Kind = Column::Kind;
  std::vector<Column> columns{
      {.key = "layers", .title = "linear layers", .kind = Kind::text},
      {.key = "count", .title = "count"},
      {.key = "prune", .title = "pruned by", .kind = Kind::text},
      {.key = "input_zeros_percent", .title = "zeros before", .unit = "%", .decimals = 2},
      {.key = "zeros_percent", .title = "zeros", .unit = "%", .decimals = 2}};
  for (const Inspection& inspection : inspections) {
    columns.push_back({.key = inspection.format + "_mib",
                       .title = inspection.format,
                       .unit = "MiB",
                       .decimals = 2});
  }
  return columns;
}

std::vector<Column> model_columns() {
  return {{.key = "as", .title = "as", .kind = Column::Kind::text},
          {.key = "linear_mib", .title = "linear layers", .unit = "MiB", .decimals = 2},
          {.key = "other_mib", .title = "other tensors", .unit = "MiB", .decimals = 2},
          {.key = "model_mib", .title = "model", .unit = "MiB", .decimals = 2},
          {.key = "compression", .title = "compression", .unit = "x", .decimals = 3}};
}

Row model_row(const std::string& name, const Conversion& conversion) {
  return {name, mib(conversion.bytes()), mib(conversion.other_bytes), mib(model_bytes(conversion)),
          ratio(conversion.dense_bytes() + conversion.other_bytes, model_bytes(conversion))};
}

// Of weights that are rounded to narrow values.
struct RoundedSum {
  std::string kind;
  std::string method;
  std::string values;
  int64_t layers = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
  RoundedWeight rounded = {};

  void add(const ConvertedWeight& weight) {
    layers += 1;
    elements += weight.elements();
    bytes += weight.bytes;
    rounded.error += weight.rounded->error;
    rounded.pruned_squares += weight.rounded->pruned_squares;
  }
};

Row rounded_row(const RoundedSum& sum) {
  const QuantizationError& error = sum.rounded.error;
  return {sum.kind,
          sum.layers,
          sum.method,
          sum.values,
          mib(sum.bytes),
          8.0 * ratio(sum.bytes, sum.elements),
          100.0 * error.relative(),
          sum.rounded.pruned_squares > 0.0
              ? Cell(100.0 * error.squared_error / sum.rounded.pruned_squares)
              : Cell(),
          error.lost,
          error.lost_groups,
          error.clipped_groups};
}

// What rounding changed, where values are narrow.
void report_rounded(const Conversion& conversion, ReportWriter& report) {
  using Kind = Column::Kind;
  std::vector<RoundedSum> groups;
  RoundedSum total{.kind = "rounded layers", .method = "", .values = ""};
  for (const ConvertedWeight& weight : conversion.weights) {
    if (!weight.rounded) {
      continue;
    }
    const std::string kind = kind_of(weight.layer);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const RoundedSum& candidate) {
      return candidate.kind == kind && candidate.method == weight.method &&
             candidate.values == weight.values;
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(),
                            {.kind = kind, .method = weight.method, .values = weight.values});
    }
    group->add(weight);
    total.add(weight);
  }
  if (groups.empty()) {
    return;
  }
  report.begin_table(
      "values",
      {{.key = "layers", .title = "linear layers", .kind = Kind::text},
       {.key = "count", .title = "count"},
       {.key = "prune", .title = "pruned by", .kind = Kind::text},
       {.key = "values", .title = "values", .kind = Kind::text},
       {.key = "stored_mib", .title = "stored", .unit = "MiB", .decimals = 2},
       {.key = "bits_per_weight", .title = "of a weight", .unit = "bits", .decimals = 2},
       {.key = "error_percent", .title = "error", .unit = "%", .decimals = 2},
       {.key = "added_percent", .title = "added to pruning's", .unit = "%", .decimals = 2},
       {.key = "rounded_to_zero", .title = "rounded to zero"},
       {.key = "lost_groups", .title = "lost groups"},
       {.key = "clipped_groups", .title = "clipped groups"}});
  for (const RoundedSum& group : groups) {
    report.add_row(rounded_row(group));
  }
  report.add_row(rounded_row(total));
}

// Of scales that do not reach the weights; nothing if all do.
std::string scale_warning(const Conversion& conversion) {
  QuantizationError sum;
  for (const ConvertedWeight& weight : conversion.weights) {
    if (weight.rounded) {
      sum += weight.rounded->error;
    }
  }
  if (sum.lost_groups == 0 && sum.clipped_groups == 0) {
    return {};
  }
  return fmt::format(
      "the weights of {} of {} groups that share a scale are too small or too large for the scales "
      "of narrow values (of i4 f16, from 6e-8 to 65504): {} became zero, {} are clipped",
      sum.lost_groups + sum.clipped_groups, sum.groups, sum.lost_groups, sum.clipped_groups);
}

// Why weights are dense that could be expected not to be.
void report_dense(const Conversion& conversion, ReportWriter& report) {
  std::map<std::string, Sum> reasons;
  for (const ConvertedWeight& weight : conversion.weights) {
    if (!weight.why_dense.empty()) {
      reasons[weight.why_dense].add(weight);
    }
  }
  if (reasons.empty()) {
    return;
  }
  report.begin_table("dense", {{.key = "why", .title = "why dense", .kind = Column::Kind::text},
                               {.key = "count", .title = "linear layers"},
                               {.key = "mib", .title = "stored", .unit = "MiB", .decimals = 2}});
  for (const auto& [why, sum] : reasons) {
    report.add_row({why, sum.layers, mib(sum.bytes)});
  }
}

void report_weights(std::string_view name, const Conversion& conversion, ReportWriter& report) {
  using Kind = Column::Kind;
  report.begin_table(std::string(name),
                     {{.key = "module", .title = "module", .kind = Kind::text},
                      {.key = "out", .title = "out"},
                      {.key = "in", .title = "in"},
                      {.key = "prune", .title = "pruned by", .kind = Kind::text},
                      {.key = "format", .title = "format", .kind = Kind::text},
                      {.key = "input_nonzeros", .title = "nonzeros before"},
                      {.key = "nonzeros", .title = "nonzeros"},
                      {.key = "dense_bytes", .title = "dense", .unit = "bytes"},
                      {.key = "formula_bytes", .title = "by formula", .unit = "bytes"},
                      {.key = "stored_bytes", .title = "stored", .unit = "bytes"},
                      {.key = "gpu", .title = "for a GPU", .kind = Kind::text},
                      {.key = "why_dense", .title = "why dense", .kind = Kind::text}});
  for (const ConvertedWeight& weight : conversion.weights) {
    report.add_row({weight.layer.module, weight.layer.rows, weight.layer.columns, weight.method,
                    weight.format, weight.stored_nonzeros, weight.nonzeros, weight.dense_bytes,
                    weight.formula_bytes, weight.bytes, for_gpu(weight.format), weight.why_dense});
  }
}

void report_rounded_weights(const Conversion& conversion, ReportWriter& report) {
  using Kind = Column::Kind;
  if (conversion.narrow_values().empty()) {
    return;
  }
  report.begin_table("values of weights",
                     {{.key = "module", .title = "module", .kind = Kind::text},
                      {.key = "values", .title = "values", .kind = Kind::text},
                      {.key = "error_percent", .title = "error", .unit = "%", .decimals = 2},
                      {.key = "rounded_to_zero", .title = "rounded to zero"}});
  for (const ConvertedWeight& weight : conversion.weights) {
    if (weight.rounded) {
      const QuantizationError& error = weight.rounded->error;
      report.add_row({weight.layer.module, weight.values, 100.0 * error.relative(), error.lost});
    }
  }
}

void report_activation_sparsity(const ActivationSparsity& sparsity, ReportWriter& report) {
  using Kind = Column::Kind;
  if (sparsity.mode != ActivationSparsity::Mode::predict) {
    return;
  }
  report.begin_table(
      "activation sparsity",
      {{.key = "votes", .title = "predicted by", .kind = Kind::text},
       {.key = "alphas", .title = "alphas of the layers", .kind = Kind::text},
       {.key = "skipped_percent", .title = "neurons skipped", .unit = "%", .decimals = 1},
       {.key = "perplexity_loss_percent", .title = "perplexity", .unit = "%", .decimals = 2}});
  std::vector<std::string> alphas;
  for (const std::optional<float>& alpha : sparsity.alphas) {
    alphas.push_back(alpha ? fmt::format("{:.3f}", *alpha) : "-");
  }
  report.add_row({fmt::format("{} votes", name_of(sparsity.votes)),
                  fmt::format("{}", fmt::join(alphas, " ")), 100.0 * *sparsity.skipped,
                  100.0 * *sparsity.perplexity_loss});
}

}  // namespace

std::vector<std::string> conversion_warnings(const Conversion& conversion) {
  std::map<std::string, int64_t> dense;  // by the reason
  for (const ConvertedWeight& weight : conversion.weights) {
    if (!weight.why_dense.empty()) {
      ++dense[weight.why_dense];
    }
  }
  const size_t all = conversion.weights.size();
  std::vector<std::string> warnings;
  if (!conversion.has_tokenizer) {
    warnings.emplace_back(
        "the model has no tokenizer (tokenizer.model, tokenizer.json or vocab.json): what is "
        "converted takes and gives token ids alone");
  }
  for (const auto& [why, count] : dense) {
    warnings.push_back(fmt::format("{} of {} linear layers stay dense: {}", count, all, why));
  }
  if (std::string warning = scale_warning(conversion); !warning.empty()) {
    warnings.push_back(std::move(warning));
  }
  if (!conversion.left_out.empty()) {
    warnings.push_back(left_out_warning(conversion.left_out));
  }
  if (!conversion.quantization_warning.empty()) {
    warnings.push_back(conversion.quantization_warning);
  }
  if (conversion.activation_sparsity &&
      conversion.activation_sparsity->mode == ActivationSparsity::Mode::off) {
    warnings.emplace_back(
        "activation sparsity is off in what was written: no neurons may be skipped within "
        "--max-loss");
  }
  if (conversion.dropped_alphas) {
    warnings.emplace_back(
        "the alphas of activation sparsity in the input's config.json are not those of pruned "
        "weights, and were dropped; calibrate what was written");
  }
  return warnings;
}

void report_conversion(const Conversion& conversion, Detail detail, ReportWriter& report) {
  report.begin_table("layers", group_columns());
  add_groups(conversion, report);
  report.begin_table("model", model_columns());
  report.add_row(model_row("stored", conversion));
  report_rounded(conversion, report);
  report_dense(conversion, report);
  if (conversion.activation_sparsity) {
    report_activation_sparsity(*conversion.activation_sparsity, report);
  }
  if (detail == Detail::weights) {
    report_weights("weights", conversion, report);
    report_rounded_weights(conversion, report);
  }
}

void report_inspection(std::span<const Inspection> inspections, Detail detail,
                       ReportWriter& report) {
  report.begin_table("layers", inspection_columns(inspections));
  std::vector<std::vector<Sum>> groups;  // of each format; the same layers in all of them
  for (const Inspection& inspection : inspections) {
    groups.push_back(groups_of(inspection.conversion, Same::kind_and_method));
    groups.back().push_back(total_of(inspection.conversion));
  }
  for (size_t i = 0; i < groups.front().size(); ++i) {
    const Sum& group = groups.front()[i];
    Row row{group.kind, group.layers, group.method,
            percent_zeros(group.stored_nonzeros, group.elements),
            percent_zeros(group.nonzeros, group.elements)};
    for (const std::vector<Sum>& as : groups) {
      row.emplace_back(mib(as[i].bytes));
    }
    report.add_row(std::move(row));
  }
  report.begin_table("model", model_columns());
  for (const Inspection& inspection : inspections) {
    report.add_row(model_row(inspection.format, inspection.conversion));
  }
  report_rounded(inspections.front().conversion, report);
  if (detail == Detail::weights) {
    for (const Inspection& inspection : inspections) {
      report_weights("weights as " + inspection.format, inspection.conversion, report);
    }
  }
}

}  // namespace sparsellm
