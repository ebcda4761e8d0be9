#include "kernels/zero_pattern.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace sparsellm {
namespace {

using Kind = ZeroPattern::Kind;

struct KindName {
  Kind kind;
  std::string_view name;
};
constexpr KindName kKinds[] = {
    {Kind::uniform, "uniform"},           {Kind::rows, "rows"},
    {Kind::columns, "columns"},           {Kind::outliers, "outliers"},
    {Kind::dense_blocks, "dense-blocks"},
};

constexpr double kShareRounding = 1e-9;  // of a share that is 1 minus another

bool is_share(Kind kind) { return kind == Kind::outliers || kind == Kind::dense_blocks; }

double most_of(Kind kind) {
  if (kind == Kind::uniform) {
    return 0.0;
  }
  return is_share(kind) ? 1.0 : ZeroPattern::kMaxDeviation;
}

bool in_range(const ZeroPattern& pattern) {  // NaN is not
  return pattern.amount >= 0.0 && pattern.amount <= most_of(pattern.kind);
}

// The whole of the text.
std::optional<double> parse_number(std::string_view text) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<ZeroPattern> parse_zero_pattern(std::string_view text) {
  const size_t colon = text.find(':');
  for (const auto& [kind, name] : kKinds) {
    if (text.substr(0, colon) != name) {
      continue;
    }
    if (kind == Kind::uniform) {
      return colon == std::string_view::npos ? std::optional(ZeroPattern()) : std::nullopt;
    }
    const std::optional<double> amount =
        colon == std::string_view::npos ? std::nullopt : parse_number(text.substr(colon + 1));
    const ZeroPattern pattern{.kind = kind,
                              .amount = amount.value_or(std::nan("")) + 0.0};  // -0 becomes 0
    return in_range(pattern) ? std::optional(pattern) : std::nullopt;
  }
  return std::nullopt;
}

std::string to_string(const ZeroPattern& pattern) {
  for (const auto& [kind, name] : kKinds) {
    if (kind == pattern.kind && kind != Kind::uniform) {
      return fmt::format("{}:{}", name, pattern.amount);
    }
  }
  return "uniform";
}

std::string why_not(const ZeroPattern& pattern, double sparsity) {
  if (!in_range(pattern)) {
    return fmt::format("{}: expected {}", to_string(pattern), kZeroPatternSyntax);
  }
  if (is_share(pattern.kind) && pattern.amount > 1.0 - sparsity + kShareRounding) {
    return fmt::format("{}: a share of {} is dense, more than all nonzeros of a sparsity of {}",
                       to_string(pattern), pattern.amount, sparsity);
  }
  return {};
}

}  // namespace sparsellm
