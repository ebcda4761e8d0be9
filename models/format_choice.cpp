#include "models/format_choice.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/choice/narrow_rules.h"
#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm {
namespace {

// Formats that differ by less are equally fast: it is what measurements differ by.
constexpr double kEquallyFast = 1.02;

constexpr double kMicroseconds = 1e6;
constexpr double kNever = std::numeric_limits<double>::infinity();

double seconds_of(const FormatTime& time) { return time.seconds.value_or(kNever); }

// nullptr if none was measured.
const FormatTime* fastest(const std::vector<FormatTime>& times) {
  const double limit = kEquallyFast * seconds_of(*std::ranges::min_element(times, {}, seconds_of));
  const FormatTime* best = nullptr;
  for (const FormatTime& time : times) {
    const bool better = best == nullptr || time.bytes < best->bytes ||
                        (time.bytes == best->bytes && seconds_of(time) < seconds_of(*best));
    if (time.seconds && seconds_of(time) <= limit && better) {
      best = &time;
    }
  }
  return best;
}

// Whether a GPU is to have a weight with narrow values, in whatever format. What is stored in
// tca_bme keeps its values, and on the CPU all formats of narrow values are loaded into panels of
// 16 bits, which gain by zeros alone.
bool is_to_be_rounded(const LayerKind& kind, const Device& device) {
  return device.is_cuda() && has_narrow_values(kind.weight.records) &&
         kind.weight.stored != tca_bme_format().name();
}

FormatChoice as_planned(const LayerKind& kind, const ChoiceOptions& options) {
  return {.kind = kind,
          .in = kind.in(kind.weight.planned),
          .by = FormatChoice::By::plan,
          .device = options.device};
}

TimeSource time_source(const ChoiceOptions& options, FormatMeter* meter, TuneCache& cache,
                       std::string_view device_key) {
  return {.device = options.device,
          .tokens = options.tokens,
          .most_tokens = options.most_tokens,
          .device_key = device_key,
          .cache = cache,
          .meter = meter};
}

std::string reason_of(const FormatChoice& choice, const FormatRules& rules) {
  const std::string for_memory = choice.for_memory ? ", for its size" : "";
  switch (choice.by) {
    case FormatChoice::By::rules:
      return fmt::format("by the rules of {}", rules.gpu());
    case FormatChoice::By::no_other:
      return "for want of another candidate";
    case FormatChoice::By::cache:
      return "as measured before" + for_memory;
    case FormatChoice::By::measurement:
      return "by measurement" + for_memory;
    case FormatChoice::By::plan:
      return choice.kind.layer.always_dense ? "for activation sparsity" : "by the plan";
  }
  return "?";
}

}  // namespace

int64_t FormatChoice::bytes(const LayerFormat& other) const {
  const auto time = std::ranges::find(times, other, &FormatTime::in);
  return time != times.end() && time->seconds ? time->bytes
                                              : expected_bytes(kind, kind.weight, other, device);
}

int64_t FormatChoice::bytes_of_all(const LayerFormat& other) const {
  const auto expected = static_cast<double>(expected_bytes(kind, kind.weight, other, device));
  const auto known = static_cast<double>(bytes(other));
  int64_t sum = 0;
  for (const LayerWeight& weight : kind.weights) {
    const auto own = static_cast<double>(expected_bytes(kind, weight, other, device));
    sum += std::llround(expected > 0.0 ? known * (own / expected) : known);
  }
  return sum;
}

std::string why_no_candidate(const WeightFormat& format, const LayerKind& kind,
                             const Device& device) {
  if (&format == &dense_format()) {
    return {};
  }
  if (!format.runs_on(device)) {
    return fmt::format("it does not run on {}", to_string(device));
  }
  if (!format.holds(kind.weight.dtype)) {
    return fmt::format("it does not hold {}", name_of(kind.weight.dtype));
  }
  if (format.name() == kind.weight.stored) {
    return {};
  }
  const bool is_asked_for = &format == dense_format_with(kind.weight.records);
  if (is_asked_for && kind.weight.stored == tca_bme_format().name()) {
    return fmt::format("what is stored in {} keeps its values", kind.weight.stored);
  }
  if (!format.for_auto(device) && !(is_asked_for && is_to_be_rounded(kind, device))) {
    return "it is taken only where it is named";
  }
  if (!holds_values(format.name(), kind.weight.records)) {
    return fmt::format("it does not hold values of {}", kind.weight.records);
  }
  return saves_bytes(format, kind.size(), kind.weight.dtype,
                     records_in(format.name(), kind.weight.records))
             ? std::string()
             : "it takes no fewer bytes than dense";
}

std::vector<const WeightFormat*> format_candidates(const LayerKind& kind, const Device& device) {
  std::vector<const WeightFormat*> candidates;
  for (const WeightFormat* format : weight_formats()) {
    if (why_no_candidate(*format, kind, device).empty()) {
      candidates.push_back(format);
    }
  }
  return candidates;
}

FormatChoice choose_by_rules(const LayerKind& kind, const FormatRules& rules,
                             const ChoiceOptions& options) {
  if (!kind.weight.planned.empty()) {
    return as_planned(kind, options);
  }
  const WeightFormat& rule =
      is_to_be_rounded(kind, options.device)
          ? choose_narrow_format(kind.size(), kind.weight.dtype, kind.weight.records)
          : format_with_values(rules.choose(kind.size(), options.tokens), kind.weight.records);
  const bool sparse = &rule != &dense_format() && rule.runs_on(options.device) &&
                      saves_bytes(rule, kind.size(), kind.weight.dtype,
                                  records_in(rule.name(), kind.weight.records));
  // The rules know nothing of weights that take half or a quarter of the dense bytes.
  const bool as_stored = options.device.is_cuda() ? always_rounds(kind.weight.stored)
                                                  : sparse && !kind.weight.stored.empty();
  const std::string_view format = sparse ? rule.name() : dense_format().name();
  return {.kind = kind,
          .in = kind.in(as_stored ? kind.weight.stored : format),
          .device = options.device};
}

FormatChoice choose_by_time(const LayerKind& kind, const FormatRules& rules,
                            const ChoiceOptions& options, FormatMeter* meter, TuneCache& cache,
                            std::string_view device_key) {
  if (!kind.weight.planned.empty()) {
    return as_planned(kind, options);
  }
  FormatChoice choice{.kind = kind,
                      .in = kind.in(dense_format().name()),
                      .by = FormatChoice::By::no_other,
                      .device = options.device};
  std::vector<const WeightFormat*> others = exact_formats();
  if (const WeightFormat* const dense = dense_format_with(kind.weight.records)) {
    others.push_back(dense);
  }
  for (const WeightFormat* format : others) {
    if (std::string why = why_no_candidate(*format, kind, options.device); !why.empty()) {
      choice.not_tried.push_back({.format = std::string(format->name()), .why = std::move(why)});
    }
  }
  const std::vector<const WeightFormat*> candidates = format_candidates(kind, options.device);
  if (candidates.size() == 1) {
    return choice;
  }
  TimeSource source = time_source(options, meter, cache, device_key);
  for (const WeightFormat* format : candidates) {
    choice.times.push_back(time_of(kind, kind.in(format->name()), source));
    const FormatTime& time = choice.times.back();
    if (!time.seconds && time.why_not.empty()) {
      return choose_by_rules(kind, rules, options);  // nothing was ever tried
    }
  }
  if (const FormatTime* const best = fastest(choice.times)) {
    choice.in = best->in;
    choice.by = source.measured ? FormatChoice::By::measurement : FormatChoice::By::cache;
  } else {
    choice.in = choose_by_rules(kind, rules, options).in;
    choice.by = FormatChoice::By::rules;
  }
  return choice;
}

void add_smaller_layouts(FormatChoice& choice, const ChoiceOptions& options, FormatMeter* meter,
                         TuneCache& cache, std::string_view device_key) {
  const LayerKind& kind = choice.kind;
  const auto expected = [&](const LayerFormat& in) {
    return expected_bytes(kind, kind.weight, in, options.device);
  };
  TimeSource source = time_source(options, meter, cache, device_key);
  for (size_t i = 0, count = choice.times.size(); i < count; ++i) {
    const LayerFormat tried = choice.times[i].in;
    const LayerFormat smaller{.format = tried.format,
                              .layout = std::string(weight_format(tried.format).smaller_layout())};
    const bool is_there =
        std::ranges::find(choice.times, smaller, &FormatTime::in) != choice.times.end();
    if (smaller.layout.empty() || is_there || tried.format == kind.weight.stored ||
        expected(smaller) >= expected(tried)) {
      continue;
    }
    FormatTime time = time_of(kind, smaller, source);
    if (time.seconds || !time.why_not.empty()) {
      choice.times.push_back(std::move(time));
    }
  }
}

int64_t total_bytes(std::span<const FormatChoice> choices) {
  int64_t bytes = 0;
  for (const FormatChoice& choice : choices) {
    bytes += choice.bytes_of_all();
  }
  return bytes;
}

void fit_into(int64_t bytes, std::span<FormatChoice> choices) {
  struct Change {
    FormatChoice* choice = nullptr;
    LayerFormat in = {};
    double saved = 0.0;    // bytes of all layers of its kind
    double seconds = 0.0;  // that they take longer
    // Products instead of quotients: what costs nothing comes first.
    bool is_better_than(const Change& other) const {
      const double mine = saved * other.seconds;
      const double others = other.saved * seconds;
      return other.choice == nullptr || mine > others || (mine == others && saved > other.saved);
    }
  };
  while (total_bytes(choices) > bytes) {
    Change best;
    for (FormatChoice& choice : choices) {
      const auto now = std::ranges::find(choice.times, choice.in, &FormatTime::in);
      for (const FormatTime& time : choice.times) {
        const int64_t saved = choice.bytes_of_all() - choice.bytes_of_all(time.in);
        if (!time.seconds || saved <= 0) {
          continue;
        }
        const double longer = std::max(0.0, *time.seconds - seconds_of(*now));
        const Change change{.choice = &choice,
                            .in = time.in,
                            .saved = static_cast<double>(saved),
                            .seconds = static_cast<double>(choice.kind.count()) * longer};
        best = change.is_better_than(best) ? change : best;
      }
    }
    if (best.choice == nullptr) {
      return;
    }
    best.choice->in = best.in;
    best.choice->for_memory = true;
  }
}

LayerFormats layer_formats(std::span<const FormatChoice> choices) {
  LayerFormats formats;
  for (const FormatChoice& choice : choices) {
    for (const std::string& weight : choice.kind.first_weights) {
      formats.emplace(weight, choice.in);
    }
  }
  return formats;
}

std::string_view name_of(FormatChoice::By by) {
  switch (by) {
    case FormatChoice::By::rules:
      return "rules";
    case FormatChoice::By::no_other:
      return "no other";
    case FormatChoice::By::cache:
      return "cache";
    case FormatChoice::By::measurement:
      return "measurement";
    case FormatChoice::By::plan:
      return "plan";
  }
  return "?";
}

std::string to_string(const FormatChoice& choice, const FormatRules& rules) {
  const LayerKind& kind = choice.kind;
  std::string text =
      fmt::format("{} layers of {} x {}, {:.1f} % nonzeros: {}, ", kind.count(), kind.layer.rows,
                  kind.layer.columns, 100.0 * kind.weight.density, to_string(choice.in));
  text += reason_of(choice, rules);
  std::vector<std::string> details;
  for (const FormatTime& time : choice.times) {
    const std::string name = to_string(time.in);
    details.push_back(time.seconds ? fmt::format("{} {:.1f} us, {:.1f} MiB", name,
                                                 *time.seconds * kMicroseconds,
                                                 static_cast<double>(time.bytes) / (1 << 20))
                                   : fmt::format("{} not measured: {}", name, time.why_not));
  }
  for (const FormatChoice::NotTried& other : choice.not_tried) {
    details.push_back(fmt::format("{} not tried: {}", other.format, other.why));
  }
  return details.empty() ? text : fmt::format("{} ({})", text, fmt::join(details, "; "));
}

}  // namespace sparsellm
