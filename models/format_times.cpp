#include "models/format_times.h"

#include <spdlog/fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

// Rises when times of an earlier version of the code may no longer be right.
constexpr int kTimesVersion = 1;

constexpr double kMicro = 1e6;

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

std::optional<FormatTime> time_from(std::string_view& text, std::string_view format) {
  if (!skip(text, format) || !skip(text, " ")) {
    return std::nullopt;
  }
  FormatTime time{.format = std::string(format)};
  if (skip(text, "none")) {
    return time;
  }
  const std::optional<double> microseconds = take_number<double>(text);
  if (!microseconds || !std::isfinite(*microseconds) || *microseconds <= 0.0 ||
      !skip(text, " us ")) {
    return std::nullopt;
  }
  const std::optional<int64_t> bytes = take_number<int64_t>(text);
  if (!bytes || *bytes < 0 || !skip(text, " bytes")) {
    return std::nullopt;
  }
  time.seconds = *microseconds / kMicro;
  time.bytes = *bytes;
  return time;
}

}  // namespace

std::string format_times_key(const LayerKind& kind, std::span<const WeightFormat* const> candidates,
                             std::span<const int64_t> tokens, std::string_view device_key) {
  std::vector<std::string> formats;
  for (const WeightFormat* format : candidates) {
    formats.push_back(fmt::format("{} {}{}", format->name(), format->version(),
                                  format->name() == kind.weight.stored ? " stored" : ""));
  }
  return fmt::format("weight formats {}, {}, {}x{} {}, {:.0f} % nonzeros, {}{}, tokens {}, {}",
                     kTimesVersion, fmt::join(formats, ", "), kind.layer.rows, kind.layer.columns,
                     name_of(kind.weight.dtype), 100.0 * kind.weight.density,
                     kind.layer.has_bias ? "bias, " : "", name_of(kind.layer.activation.kind),
                     fmt::join(tokens, " "), device_key);
}

std::string to_text(std::span<const FormatTime> times) {
  std::vector<std::string> texts;
  for (const FormatTime& time : times) {
    texts.push_back(time.seconds ? fmt::format("{} {:.3f} us {} bytes", time.format,
                                               *time.seconds * kMicro, time.bytes)
                                 : fmt::format("{} none", time.format));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::vector<FormatTime> format_times_from(std::string_view text, const LayerKind& kind,
                                          std::span<const WeightFormat* const> candidates) {
  std::vector<FormatTime> times;
  for (const WeightFormat* format : candidates) {
    if (!times.empty() && !skip(text, "; ")) {
      return {};
    }
    const std::optional<FormatTime> time = time_from(text, format->name());
    const bool must_have_one = format == &dense_format();  // which all weights can be
    if (!time || time->bytes > 2 * kind.dense_bytes() || (must_have_one && !time->seconds)) {
      return {};
    }
    times.push_back(*time);
  }
  return text.empty() ? times : std::vector<FormatTime>();
}

}  // namespace sparsellm
