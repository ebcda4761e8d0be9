#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"

// What the plans of products of encoded weights on CUDA devices have in common. A format's plan is
// a std::variant of Expansion and of the configurations of its kernels.
namespace sparsellm {

// What plans are chosen for.
struct PlannedProduct {
  DType y = DType::f16;
  int64_t tokens = 0;            // their bucket
  bool overlaps_pieces = false;  // whether the workspace has room for expansions that do
};

// Expanding this many rows of a weight at once (sparse/expand_matmul.h).
struct Expansion {
  int64_t piece_rows = 0;
  bool overlapped = true;

  bool operator==(const Expansion&) const = default;
};

// From this many tokens on, expanding the weight and multiplying the dense copy may be faster than
// a kernel that reads the encoded weight.
inline constexpr int64_t kMinExpandedTokens = 32;

// Of a weight [out, in]: the one that takes the least from the workspace, and those that overlap,
// the best guess first.
Expansion single_piece_expansion(int64_t out, int64_t in);
std::vector<Expansion> overlapped_expansions(int64_t out, int64_t in, int64_t tokens);

// "expand <rows>", with ", one after the other" for pieces that are not overlapped, and back.
// Nothing for text that is not one of the expansions above for such a product.
std::string to_text(const Expansion& expansion);
std::optional<Expansion> expansion_from(std::string_view text, int64_t out, int64_t in,
                                        int64_t tokens);

// The one of these configurations that has the name.
template <class Plan, class Config>
std::optional<Plan> plan_named(const std::vector<Config>& configs,
                               std::string (*name_of)(const Config&), std::string_view name) {
  const auto found = std::find_if(configs.begin(), configs.end(),
                                  [&](const Config& config) { return name_of(config) == name; });
  return found == configs.end() ? std::nullopt : std::optional<Plan>(*found);
}

// Percent of nonzeros as keys of choices have it, a multiple of 5: layers of a model differ by
// less.
int64_t percent_for_key(int64_t nonzeros, int64_t elements);

}  // namespace sparsellm
