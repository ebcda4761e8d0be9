#include "sparse/prune/plan_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using Kind = PruneMethod::Kind;

constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxPatterns = 100;
constexpr size_t kMaxPatternLength = 200;

// `raw` is what `value` views, which reads numbers as f32: too coarse for round(share * elements).
double read_fraction(const json& raw, const JsonValue& value) {
  value.number(0.0f, 1.0f);
  return raw.get<double>();
}

// What body() returns; its Error begins with the name.
template <class Body>
auto with_name(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    fail("{}: {}", name, error.what());
  }
}

// "1/8"
std::optional<double> parse_ratio(std::string_view text) {
  uint32_t numerator = 0;
  uint32_t denominator = 0;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, numerator);
  if (error != std::errc{} || slash == end || *slash != '/') {
    return {};
  }
  const auto [rest, second_error] = std::from_chars(slash + 1, end, denominator);
  if (second_error != std::errc{} || rest != end || numerator > denominator || denominator == 0) {
    return {};
  }
  return static_cast<double>(numerator) / denominator;
}

double read_share(const json& raw, const JsonValue& value) {
  if (!value.is_string()) {
    return read_fraction(raw, value);
  }
  const auto ratio = parse_ratio(value.string());
  if (!ratio) {
    value.refuse("expected a number from 0 to 1 or a fraction such as \"1/8\"");
  }
  return *ratio;
}

LayerRange read_layer_numbers(const JsonValue& value) {
  const std::vector<int64_t> numbers = value.integers(-kMaxLayers, kMaxLayers);
  require(numbers.size() == 2, "{} has {} elements; expected [begin, end]", value.name(),
          numbers.size());
  const int64_t begin = numbers[0];
  const int64_t end = numbers[1];
  // With one of them from the end it depends on the model.
  const bool comparable = (begin < 0) == (end <= 0);
  require(!comparable || begin < end, "{} is [{}, {}], which no layer is in", value.name(), begin,
          end);
  return {.unit = LayerRange::Unit::layer,
          .begin = static_cast<double>(begin),
          .end = static_cast<double>(end)};
}

LayerRange read_between(const json& raw, const JsonValue& value) {
  require(value.size() == 2, "{} has {} elements; expected [begin, end]", value.name(),
          value.size());
  const double begin = read_share(raw.at(0), value.element(0));
  const double end = read_share(raw.at(1), value.element(1));
  require(begin < end, "{} is [{}, {}], which no layer is in", value.name(), begin, end);
  return {.begin = begin, .end = end};
}

LayerRange read_layer_shares(const json& raw, const JsonValue& value) {
  value.allow_only({"first", "last", "ends", "between"});
  const std::vector<std::string> keys = value.keys();
  require(keys.size() == 1, "{} has {} members; expected one of first, last, ends and between",
          value.name(), keys.size());
  const std::string& key = keys.front();
  const JsonValue member = value[key];
  const json& raw_member = raw.at(key);
  if (key == "between") {
    return read_between(raw_member, member);
  }
  const double share = read_share(raw_member, member);
  if (share == 0.0) {
    member.refuse("no layer is in that");
  }
  if (key == "first") {
    return {.end = share};
  }
  if (key == "last") {
    return {.begin = 1.0 - share};
  }
  if (share > 0.5) {
    member.refuse("expected at most one half");
  }
  return {.begin = share, .end = 1.0 - share, .side = LayerRange::Side::outside};
}

void require_pattern(const std::string& pattern, const JsonValue& value) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.*?";
  require(!pattern.empty() && pattern.size() <= kMaxPatternLength &&
              pattern.find_first_not_of(kAllowed) == std::string::npos &&
              pattern.find("..") == std::string::npos && pattern.front() != '.' &&
              pattern.back() != '.',
          "{}: the pattern {} matches no module name; expected one such as *.mlp.up_proj",
          value.name(), quote(pattern));
}

void require_absent(const JsonValue& value, PruneMethod method) {
  if (value.present()) {
    value.refuse(fmt::format("the pruning method {} has none", to_string(method)));
  }
}

PruneScope read_scope(const JsonValue& value) {
  for (PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
    if (value.string() == name_of(scope)) {
      return scope;
    }
  }
  value.refuse("expected row or matrix");
}

BlockShape read_block(const JsonValue& value) {
  const std::optional<BlockShape> block = parse_block_shape(value.string());
  if (!block) {
    value.refuse(fmt::format("expected {}", kBlockShapeSyntax));
  }
  return *block;
}

PruneSettings read_settings(const json& rule, const JsonValue& value) {
  const std::string& method = value["prune"].string();
  PruneSettings settings;
  settings.method = with_name(value.name(), [&] { return parse_prune_method(method); });
  const Kind kind = settings.method.kind;
  if (kind == Kind::none || kind == Kind::n_m) {
    require_absent(value["sparsity"], settings.method);
  } else {
    const json absent;
    const auto found = rule.find("sparsity");
    settings.sparsity = read_fraction(found == rule.end() ? absent : *found, value["sparsity"]);
  }
  if (kind != Kind::magnitude && kind != Kind::random) {
    require_absent(value["scope"], settings.method);
    require_absent(value["block"], settings.method);
  } else {
    settings.scope = value["scope"].present() ? read_scope(value["scope"]) : settings.scope;
    settings.block = value["block"].present() ? read_block(value["block"]) : settings.block;
  }
  if (kind != Kind::random) {
    require_absent(value["seed"], settings.method);
  } else {
    const int64_t seed = value["seed"].integer(0, std::numeric_limits<int64_t>::max(), 0);
    settings.seed = static_cast<uint64_t>(seed);
  }
  return settings;
}

// Of the member records or values; empty if there is none.
std::string read_records(const JsonValue& rule, const std::string& format) {
  const JsonValue records = rule["records"];
  const JsonValue values = rule["values"];
  if (!records.present() && !values.present()) {
    return {};
  }
  if (records.present() && values.present()) {
    values.refuse("a rule has records or values, not both");
  }
  const JsonValue& member = records.present() ? records : values;
  const std::string& text = member.string();
  if (!may_be_records(format) && !always_rounds(format)) {
    member.refuse(fmt::format("the weight format {} has none", format));
  }
  if (text.empty() || has_narrow_values(text) != values.present()) {
    member.refuse(values.present() ? "expected i8, f8, i4, i4:32, i4:64 or i4:128"
                                   : "expected speed or size");
  }
  with_name(member.name(), [&] {
    may_be_records(format) ? check_records(text) : weight_format(format).check_layout(text);
  });
  return text;
}

}  // namespace

std::vector<std::string> read_patterns(const json& rule, const std::string& name) {
  const JsonValue value = JsonValue(rule, name)["tensors"];
  std::vector<std::string> patterns =
      value.is_array() ? value.strings() : std::vector{value.string()};
  require(!patterns.empty() && std::ssize(patterns) <= kMaxPatterns,
          "{} has {} patterns; expected 1 to {}", value.name(), patterns.size(), kMaxPatterns);
  for (const std::string& pattern : patterns) {
    require_pattern(pattern, value);
  }
  return patterns;
}

LayerRange read_layers(const json& rule, const std::string& name) {
  const JsonValue value = JsonValue(rule, name)["layers"];
  if (!value.present()) {
    return {};
  }
  if (value.is_array()) {
    return read_layer_numbers(value);
  }
  return read_layer_shares(rule.at("layers"), value);
}

LayerPlan read_layer_plan(const json& rule, const std::string& name) {
  const JsonValue value(rule, name);
  const JsonValue format = value["format"];
  LayerPlan plan;
  plan.prune = read_settings(rule, value);
  if (format.present()) {
    plan.format = format.string();
    with_name(name, [&] { require_format(plan.format); });
  }
  plan.layout = read_records(value, plan.format);
  return plan;
}

void require_format(std::string_view format) {
  const auto formats = weight_formats();
  require(format == kAutoFormat || format == kSmallestFormat ||
              std::any_of(formats.begin(), formats.end(),
                          [&](const WeightFormat* known) { return known->name() == format; }),
          "the weight format {} is not known; use one of {}, {}, {}", quote(format), kAutoFormat,
          kSmallestFormat, weight_format_names());
}

}  // namespace sparsellm
