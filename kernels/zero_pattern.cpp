#include "kernels/zero_pattern.h"

#include <fmt/format.h>

#include <charconv>

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
    {Kind::dense_blocks, "dense-blocks"}, {Kind::magnitude, "magnitude"},
    {Kind::kept_blocks, "kept-blocks"},
};

constexpr double kShareRounding = 1e-9;  // of a share that is 1 minus another

bool is_share(Kind kind) { return kind == Kind::outliers || kind == Kind::dense_blocks; }

double most_of(Kind kind) {
  if (kind == Kind::uniform || kind == Kind::kept_blocks) {
    return 0.0;
  }
  return is_share(kind) ? 1.0 : ZeroPattern::kMaxDeviation;
}

bool in_range(const ZeroPattern& pattern) {  // NaN is not
  return pattern.amount >= 0.0 && pattern.amount <= most_of(pattern.kind) &&
         pattern.block.in_range() &&
         (pattern.kind == Kind::kept_blocks || pattern.block == BlockShape());
}

// The whole of the text.
std::optional<double> parse_number(std::string_view text) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

// What follows the colon.
std::optional<ZeroPattern> parse_amount(Kind kind, std::string_view text) {
  if (kind == Kind::kept_blocks) {
    const std::optional<BlockShape> block = parse_block_shape(text);
    return block ? std::optional(ZeroPattern{.kind = kind, .block = *block}) : std::nullopt;
  }
  const std::optional<double> amount = parse_number(text);
  return amount ? std::optional(ZeroPattern{.kind = kind, .amount = *amount + 0.0})  // no -0
                : std::nullopt;
}

}  // namespace

std::optional<ZeroPattern> parse_zero_pattern(std::string_view text) {
  const size_t colon = text.find(':');
  for (const auto& [kind, name] : kKinds) {
    if (text.substr(0, colon) != name) {
      continue;
    }
    if ((kind == Kind::uniform) != (colon == std::string_view::npos)) {
      return std::nullopt;
    }
    const std::optional<ZeroPattern> pattern =
        kind == Kind::uniform ? ZeroPattern() : parse_amount(kind, text.substr(colon + 1));
    return pattern && in_range(*pattern) ? pattern : std::nullopt;
  }
  return std::nullopt;
}

std::string to_string(const ZeroPattern& pattern) {
  for (const auto& [kind, name] : kKinds) {
    if (kind == pattern.kind && kind == Kind::kept_blocks) {
      return fmt::format("{}:{}", name, to_string(pattern.block));
    }
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
