#include "models/format_times.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// Rises when times of an earlier version of the code may no longer be right.
constexpr int kTimesVersion = 2;

constexpr double kMicro = 1e6;
constexpr std::string_view kNone = "none: ";

// A cache may hold anything.
bool skip(std::string_view& text, std::string_view what) {
  const bool found = text.starts_with(what);
  text.remove_prefix(found ? what.size() : 0);
  return found;
}

template <class T>
std::optional<T> take_number(std::string_view& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// A reason is printed: nothing in it may be meant for a terminal.
bool is_short_line(std::string_view text) {
  constexpr size_t kLongest = 1000;
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  return !text.empty() && text.size() <= kLongest && std::ranges::all_of(text, printable);
}

// Adds the times for some of the numbers of tokens, or says why there is none.
void measure(const LayerKind& kind, std::span<const int64_t> tokens, TimeSource& source,
             FormatTime& time) {
  const int64_t expected = expected_bytes(kind, kind.weight, time.in, source.device);
  const auto fail_with = [&](const Error& error) {
    time.seconds.reset();
    time.why_not = error.what();
    for (const int64_t each : tokens) {
      source.cache.put(format_time_key(kind, time.in, each, source), to_text(time, expected));
    }
  };
  try {
    const FormatMeter::Measured measured = source.meter->measure(kind, time.in, tokens);
    time.bytes = measured.bytes;
    for (size_t i = 0; i < tokens.size(); ++i) {
      FormatTime one = time;
      one.seconds = measured.seconds.at(i);
      *time.seconds += *one.seconds;
      source.cache.put(format_time_key(kind, time.in, tokens[i], source), to_text(one, expected));
    }
    source.measured = true;
  } catch (const OutOfMemory& error) {
    fail_with(error);
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error& error) {
    if (time.in.format == dense_format().name()) {
      throw;  // the weight itself cannot be read
    }
    fail_with(error);
  }
}

}  // namespace

FormatTime time_of(const LayerKind& kind, const LayerFormat& in, TimeSource& source) {
  const int64_t expected = expected_bytes(kind, kind.weight, in, source.device);
  FormatTime time{.in = in, .seconds = 0.0};
  std::vector<int64_t> missing;
  std::string why_not;  // as it was the last time
  for (const int64_t tokens : source.tokens) {
    const auto text = source.cache.find(format_time_key(kind, in, tokens, source));
    const auto known = text ? format_time_from(*text, kind, in, expected) : std::nullopt;
    if (known && known->seconds) {
      time.bytes = known->bytes;
      *time.seconds += *known->seconds;
    } else {
      missing.push_back(tokens);
      why_not = known ? known->why_not : why_not;
    }
  }
  if (!missing.empty() && source.meter != nullptr) {
    measure(kind, missing, source, time);
  } else if (!missing.empty()) {
    time.seconds.reset();
    time.why_not = why_not;
  }
  return time;
}

std::string format_time_key(const LayerKind& kind, const LayerFormat& in, int64_t tokens,
                            const TimeSource& source) {
  const LayerWeight& weight = kind.weight;
  const WeightFormat& format = weight_format(in.format);
  return fmt::format(
      "weight format {}, {} {}{}, {}x{} {}, {:.0f} % nonzeros, zeros {}, {}{}, tokens {} of {}, {}",
      kTimesVersion, to_string(in), format.version(), in.format == weight.stored ? " stored" : "",
      kind.layer.rows, kind.layer.columns, name_of(weight.dtype), 100.0 * weight.density,
      weight.zeros.empty() ? "of a checkpoint" : weight.zeros, kind.layer.has_bias ? "bias, " : "",
      name_of(kind.layer.activation.kind), tokens, source.most_tokens, source.device_key);
}

std::string to_text(const FormatTime& time, int64_t expected) {
  return time.seconds ? fmt::format("{:.3f} us, {} bytes of {} expected", *time.seconds * kMicro,
                                    time.bytes, expected)
                      : fmt::format("{}{}", kNone, time.why_not);
}

std::optional<FormatTime> format_time_from(std::string_view text, const LayerKind& kind,
                                           const LayerFormat& in, int64_t expected) {
  FormatTime time{.in = in};
  if (skip(text, kNone)) {
    time.why_not = text;
    return is_short_line(text) ? std::optional(time) : std::nullopt;
  }
  const auto microseconds = take_number<double>(text);
  if (!microseconds || !std::isfinite(*microseconds) || *microseconds <= 0.0 ||
      !skip(text, " us, ")) {
    return std::nullopt;
  }
  const auto bytes = take_number<int64_t>(text);
  const bool has_bytes = bytes && *bytes >= 0 && skip(text, " bytes of ");
  const auto of_expected = has_bytes ? take_number<int64_t>(text) : std::nullopt;
  if (!of_expected || *of_expected <= 0 || text != " expected") {
    return std::nullopt;
  }
  const double own = static_cast<double>(*bytes) *
                     (static_cast<double>(expected) / static_cast<double>(*of_expected));
  if (own > 2.0 * static_cast<double>(kind.dense_bytes())) {
    return std::nullopt;
  }
  time.seconds = *microseconds / kMicro;
  time.bytes = std::llround(own);
  return time;
}

}  // namespace sparsellm
