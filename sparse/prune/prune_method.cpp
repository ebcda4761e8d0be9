#include <charconv>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/prune/prune.h"

namespace sparsellm {
namespace {

using Kind = PruneMethod::Kind;

constexpr int32_t kMaxGroup = 64;

// Of nothing but digits, in the range of the type.
std::optional<int32_t> parse_count(std::string_view text) {
  int32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_count = error == std::errc{} && end == text.data() + text.size() && text[0] != '-';
  return is_count ? std::optional(count) : std::nullopt;
}

}  // namespace

PruneMethod parse_prune_method(std::string_view text) {
  for (Kind kind : {Kind::none, Kind::magnitude, Kind::random, Kind::wanda}) {
    const PruneMethod method{.kind = kind};
    if (to_string(method) == text) {
      return method;
    }
  }
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    const auto kept = parse_count(text.substr(0, colon));
    const auto group = parse_count(text.substr(colon + 1));
    if (kept && group) {
      require(*kept >= 1 && *kept <= *group && *group <= kMaxGroup,
              "the pruning method {} keeps {} of {}; N:M needs 1 <= N <= M <= {}", quote(text),
              *kept, *group, kMaxGroup);
      return {.kind = Kind::n_m, .kept = *kept, .group = *group};
    }
  }
  fail("the pruning method {} is not known; use none, magnitude, random, wanda or N:M such as 2:4",
       quote(text));
}

std::string to_string(PruneMethod method) {
  switch (method.kind) {
    case Kind::none:
      return "none";
    case Kind::magnitude:
      return "magnitude";
    case Kind::random:
      return "random";
    case Kind::wanda:
      return "wanda";
    case Kind::n_m:
      return fmt::format("{}:{}", method.kept, method.group);
  }
  return "?";
}

std::string describe_pruning(const PruneSettings& settings) {
  return settings.block == BlockShape() ? to_string(settings.method)
                                        : fmt::format("{} of {} blocks", to_string(settings.method),
                                                      to_string(settings.block));
}

std::string_view name_of(PruneScope scope) { return scope == PruneScope::row ? "row" : "matrix"; }

}  // namespace sparsellm
