#include "models/format_choice.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// Formats that differ by less are equally fast: it is what measurements differ by.
constexpr double kEquallyFast = 1.02;

constexpr double kMicroseconds = 1e6;
constexpr double kNever = std::numeric_limits<double>::infinity();

bool is_candidate(const WeightFormat& format, const LayerKind& kind, const Device& device) {
  if (&format == &dense_format()) {
    return true;
  }
  if (!format.runs_on(device) || !format.holds(kind.weight.dtype)) {
    return false;
  }
  return format.name() == kind.weight.stored ||
         (format.for_auto() && saves_bytes(format, kind.size(), kind.weight.dtype));
}

double seconds_of(const FormatTime& time) { return time.seconds.value_or(kNever); }

const FormatTime& fastest(const std::vector<FormatTime>& times) {
  const double limit = kEquallyFast * seconds_of(*std::ranges::min_element(times, {}, seconds_of));
  const FormatTime* best = nullptr;
  for (const FormatTime& time : times) {
    const bool better = best == nullptr || time.bytes < best->bytes ||
                        (time.bytes == best->bytes && seconds_of(time) < seconds_of(*best));
    if (time.seconds && seconds_of(time) <= limit && better) {
      best = &time;
    }
  }
  return best != nullptr ? *best : times.front();  // dense, which all weights can be
}

// Throws OutOfMemory.
std::vector<FormatTime> measure(const LayerKind& kind,
                                std::span<const WeightFormat* const> candidates,
                                const ChoiceOptions& options, FormatMeter& meter) {
  std::vector<FormatTime> times;
  for (const WeightFormat* format : candidates) {
    FormatTime& time = times.emplace_back(FormatTime{.format = std::string(format->name())});
    try {
      const FormatMeter::Measured measured = meter.measure(kind, *format, options.tokens);
      time.bytes = measured.bytes;
      time.seconds = measured.seconds;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const DeviceLost&) {
      throw;
    } catch (const Error&) {
      if (format == &dense_format()) {
        throw;  // the weight itself cannot be read
      }
    }
  }
  return times;
}

FormatChoice as_planned(const LayerKind& kind) {
  return {.kind = kind, .format = kind.weight.planned, .by = FormatChoice::By::plan};
}

FormatChoice choose(const LayerKind& kind, std::vector<FormatTime> times, FormatChoice::By by) {
  std::string format = fastest(times).format;
  return {.kind = kind, .format = std::move(format), .by = by, .times = std::move(times)};
}

}  // namespace

int64_t FormatChoice::bytes() const {
  const auto time = std::ranges::find(times, format, &FormatTime::format);
  if (time != times.end()) {
    return time->bytes;
  }
  const WeightFormat& chosen = weight_format(format);
  return chosen.expected_bytes(weight_header(chosen, kind.size(), kind.weight.dtype));
}

std::vector<const WeightFormat*> format_candidates(const LayerKind& kind, const Device& device) {
  std::vector<const WeightFormat*> candidates;
  for (const WeightFormat* format : weight_formats()) {
    if (is_candidate(*format, kind, device)) {
      candidates.push_back(format);
    }
  }
  return candidates;
}

FormatChoice choose_by_rules(const LayerKind& kind, const FormatRules& rules,
                             const ChoiceOptions& options) {
  if (!kind.weight.planned.empty()) {
    return as_planned(kind);
  }
  const WeightFormat& rule = rules.choose(kind.size(), options.tokens);
  const bool sparse = &rule != &dense_format() && rule.runs_on(options.device) &&
                      saves_bytes(rule, kind.size(), kind.weight.dtype);
  const bool as_stored = sparse && !options.device.is_cuda() && !kind.weight.stored.empty();
  return {.kind = kind,
          .format = as_stored ? kind.weight.stored
                              : std::string(sparse ? rule.name() : dense_format().name())};
}

FormatChoice choose_by_time(const LayerKind& kind, const FormatRules& rules,
                            const ChoiceOptions& options, FormatMeter* meter, TuneCache& cache,
                            std::string_view device_key) {
  if (!kind.weight.planned.empty()) {
    return as_planned(kind);
  }
  const std::vector<const WeightFormat*> candidates = format_candidates(kind, options.device);
  if (candidates.size() == 1) {
    return {.kind = kind,
            .format = std::string(dense_format().name()),
            .by = FormatChoice::By::no_other};
  }
  const std::string key = format_times_key(kind, candidates, options.tokens, device_key);
  if (const std::optional<std::string> text = cache.find(key)) {
    if (std::vector<FormatTime> times = format_times_from(*text, kind, candidates);
        !times.empty()) {
      return choose(kind, std::move(times), FormatChoice::By::cache);
    }
  }
  if (meter == nullptr) {
    return choose_by_rules(kind, rules, options);
  }
  try {
    std::vector<FormatTime> times = measure(kind, candidates, options, *meter);
    cache.put(key, to_text(times));
    return choose(kind, std::move(times), FormatChoice::By::measurement);
  } catch (const OutOfMemory&) {
    return choose_by_rules(kind, rules, options);
  }
}

int64_t total_bytes(std::span<const FormatChoice> choices) {
  int64_t bytes = 0;
  for (const FormatChoice& choice : choices) {
    bytes += choice.bytes() * choice.kind.count();
  }
  return bytes;
}

void fit_into(int64_t bytes, std::span<FormatChoice> choices) {
  struct Change {
    FormatChoice* choice = nullptr;
    std::string format;
    double saved = 0.0;    // bytes of one layer
    double seconds = 0.0;  // that one layer takes longer
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
      const auto now = std::ranges::find(choice.times, choice.format, &FormatTime::format);
      for (const FormatTime& time : choice.times) {
        if (!time.seconds || time.bytes >= now->bytes) {
          continue;
        }
        const Change change{.choice = &choice,
                            .format = time.format,
                            .saved = static_cast<double>(now->bytes - time.bytes),
                            .seconds = std::max(0.0, *time.seconds - seconds_of(*now))};
        best = change.is_better_than(best) ? change : best;
      }
    }
    if (best.choice == nullptr) {
      return;
    }
    best.choice->format = best.format;
    best.choice->for_memory = true;
  }
}

LayerFormats layer_formats(std::span<const FormatChoice> choices) {
  LayerFormats formats;
  for (const FormatChoice& choice : choices) {
    for (const std::string& weight : choice.kind.first_weights) {
      formats.emplace(weight, choice.format);
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
                  kind.layer.columns, 100.0 * kind.weight.density, choice.format);
  if (choice.by == FormatChoice::By::no_other) {
    return text + "in which no format saves bytes";
  }
  if (choice.by == FormatChoice::By::plan) {
    return text + "by the plan";
  }
  if (choice.times.empty()) {
    return text + fmt::format("by the rules of {}", rules.gpu());
  }
  std::vector<std::string> times;
  for (const FormatTime& time : choice.times) {
    times.push_back(time.seconds ? fmt::format("{} {:.1f} us, {:.1f} MiB", time.format,
                                               *time.seconds * kMicroseconds,
                                               static_cast<double>(time.bytes) / (1 << 20))
                                 : fmt::format("{} not possible", time.format));
  }
  text += choice.by == FormatChoice::By::cache ? "as measured before" : "by measurement";
  return fmt::format("{}{} ({})", text, choice.for_memory ? ", for its size" : "",
                     fmt::join(times, "; "));
}

}  // namespace sparsellm
