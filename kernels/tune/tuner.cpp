#include "kernels/tune/tuner.h"

#include <charconv>
#include <cmath>
#include <string_view>

namespace sparsellm {
namespace {

// "12.345 us: decode split-K 4, 8 warps, 1 passes, 0 stages"
constexpr std::string_view kUnit = " us: ";
constexpr double kMicroseconds = 1e6;

double rounding_tolerance(DType y) {
  switch (y) {
    case DType::f16:
      return 0x1p-9;
    case DType::bf16:
      return 0x1p-6;
    default:
      return 0x1p-11;
  }
}

}  // namespace

bool is_right_result(const TuneMeter::Largest& largest, DType y) {
  return static_cast<double>(largest.difference) <=
         rounding_tolerance(y) * static_cast<double>(largest.value);
}

std::string Tuner::full_key(const std::string& key) const {
  return fmt::format("{}, {}", key, meter_.device_key());
}

std::optional<Tuner::Entry> Tuner::find_entry(const std::string& key) const {
  const std::optional<std::string> text = cache_.find(full_key(key));
  if (!text) {
    return std::nullopt;
  }
  double microseconds = 0.0;
  const char* const end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, microseconds);
  const std::string_view rest(stopped, static_cast<size_t>(end - stopped));
  if (error != std::errc() || !std::isfinite(microseconds) || microseconds <= 0.0 ||
      !rest.starts_with(kUnit)) {
    return std::nullopt;
  }
  return Entry{.plan = std::string(rest.substr(kUnit.size())),
               .seconds = microseconds / kMicroseconds};
}

void Tuner::put_entry(const std::string& key, const Entry& entry) {
  cache_.put(full_key(key),
             fmt::format("{:.3f}{}{}", entry.seconds * kMicroseconds, kUnit, entry.plan));
}

}  // namespace sparsellm
