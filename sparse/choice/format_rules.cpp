#include "sparse/choice/format_rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/choice/format_rules_text.h"
#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxRulesBytes = 1 << 16;
constexpr int kMaxRulesDepth = 4;
constexpr int64_t kMaxFormatRules = 1000;
constexpr size_t kMaxGpuName = 100;
constexpr int64_t kMostElements = int64_t{1} << 60;
constexpr int64_t kMostTokens = int64_t{1} << 40;

// Both ends of a range that is there.
void require_pair(const JsonValue& range) {
  require(range.size() == 2, "{} has {} numbers; expected the least and the most", range.name(),
          range.size());
}

void require_order(const JsonValue& range, double least, double most) {
  require(least <= most, "{} begins at {}, after its end at {}", range.name(), least, most);
}

std::pair<int64_t, int64_t> read_counts(const JsonValue& range, int64_t most) {
  if (!range.present()) {
    return {0, most};
  }
  require_pair(range);
  const int64_t first = range.element(0).integer(0, most);
  const int64_t last = range.element(1).integer(0, most);
  require_order(range, static_cast<double>(first), static_cast<double>(last));
  return {first, last};
}

// As f64: a JsonValue reads numbers as f32, of which 0.52 is none.
std::pair<double, double> read_shares(const JsonValue& range) {
  if (!range.present()) {
    return {0.0, 1.0};
  }
  require_pair(range);
  for (int64_t end : {0, 1}) {
    range.element(end).number(0.0f, 1.0f);
  }
  const auto first = range.raw().at(0).get<double>();
  const auto last = range.raw().at(1).get<double>();
  require_order(range, first, last);
  return {first, last};
}

}  // namespace

FormatRules FormatRules::parse(const JsonDocument& document, const std::string& name) {
  const JsonValue file(document, name);
  file.allow_only({"description", "gpu", "rules"});
  if (file["description"].present()) {
    file["description"].string();
  }
  FormatRules rules;
  rules.gpu_ = file["gpu"].string();
  const bool printable =
      std::ranges::all_of(rules.gpu_, [](char c) { return c >= ' ' && c <= '~'; });
  if (rules.gpu_.empty() || rules.gpu_.size() > kMaxGpuName || !printable) {
    file["gpu"].refuse(fmt::format("expected 1 to {} printable characters", kMaxGpuName));
  }
  const int64_t count = file["rules"].size();
  require(count <= kMaxFormatRules, "{} has {} rules; expected at most {}", name, count,
          kMaxFormatRules);
  for (int64_t i = 0; i < count; ++i) {
    const JsonValue rule = file["rules"].element(i).named(fmt::format("{}: rule {}", name, i + 1));
    rule.allow_only({"density", "elements", "tokens", "format"});
    const auto [least_density, most_density] = read_shares(rule["density"]);
    const auto [least_elements, most_elements] = read_counts(rule["elements"], kMostElements);
    const auto [least_tokens, most_tokens] = read_counts(rule["tokens"], kMostTokens);
    const WeightFormat* const format = find_weight_format(rule["format"].string());
    if (format == nullptr || always_rounds(format->name())) {
      rule["format"].refuse(fmt::format("expected one of {}", exact_format_names()));
    }
    rules.rules_.push_back({.density = {least_density, most_density},
                            .elements = {least_elements, most_elements},
                            .tokens = {least_tokens, most_tokens},
                            .format = format});
  }
  return rules;
}

FormatRules FormatRules::read(const std::filesystem::path& path) {
  return parse(read_json_file(path, kMaxRulesBytes, kMaxRulesDepth), path.string());
}

const FormatRules& FormatRules::built_in() {
  constexpr const char* kName = "the rules of this build";
  static const FormatRules rules =
      parse(parse_json(kFormatRulesText, kName, kMaxRulesDepth), kName);
  return rules;
}

const WeightFormat& FormatRules::choose(const WeightSize& weight, int64_t tokens) const {
  const int64_t elements = checked_mul(weight.rows, weight.columns, "elements of a weight");
  const auto rule = std::ranges::find_if(rules_, [&](const Rule& candidate) {
    return candidate.density.contains(weight.density) && candidate.elements.contains(elements) &&
           candidate.tokens.contains(tokens);
  });
  return rule == rules_.end() ? dense_format() : *rule->format;
}

const WeightFormat& FormatRules::choose(const WeightSize& weight,
                                        std::span<const int64_t> tokens) const {
  std::vector<const WeightFormat*> choices;
  for (const int64_t each : tokens) {
    choices.push_back(&choose(weight, each));
  }
  const auto votes = [&](const WeightFormat* format) {
    return std::ranges::count(choices, format);
  };
  const auto most = std::ranges::max_element(choices, {}, votes);  // the first of equal ones
  return most == choices.end() ? dense_format() : **most;
}

EncodedWeight weight_header(const WeightFormat& format, const WeightSize& weight, DType dtype) {
  const int64_t elements = checked_mul(weight.rows, weight.columns, "elements of a weight");
  return {.format = std::string(format.name()),
          .version = 0,
          .dtype = dtype,
          .rows = weight.rows,
          .columns = weight.columns,
          .nonzeros = std::llround(weight.density * static_cast<double>(elements)),
          .parts = {}};
}

bool saves_bytes(const WeightFormat& format, const WeightSize& weight, DType dtype,
                 const LayoutOptions& layout) {
  if (!format.holds(dtype)) {
    return false;
  }
  EncodedWeight header = weight_header(format, weight, dtype);
  format.tell_layout(header, layout);
  return format.expected_bytes(header) < weight.rows * weight.columns * size_of(dtype);
}

}  // namespace sparsellm
