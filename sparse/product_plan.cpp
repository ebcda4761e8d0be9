#include "sparse/product_plan.h"

#include <charconv>
#include <cmath>

#include "kernels/base/error.h"
#include "sparse/expand_matmul.h"

namespace sparsellm {
namespace {

constexpr std::string_view kExpand = "expand ";
constexpr std::string_view kOneByOne = ", one after the other";

}  // namespace

Expansion single_piece_expansion(int64_t out, int64_t in) {
  return {.piece_rows = expand_single_piece_rows(out, in), .overlapped = false};
}

std::vector<Expansion> overlapped_expansions(int64_t out, int64_t in, int64_t tokens) {
  std::vector<Expansion> expansions;
  for (int64_t rows : expand_piece_choices(out, in, tokens)) {
    expansions.push_back({.piece_rows = rows});
  }
  return expansions;
}

std::string to_text(const Expansion& expansion) {
  return fmt::format("{}{}{}", kExpand, expansion.piece_rows,
                     expansion.overlapped ? std::string_view() : kOneByOne);
}

std::optional<Expansion> expansion_from(std::string_view text, int64_t out, int64_t in,
                                        int64_t tokens) {
  if (!text.starts_with(kExpand)) {
    return std::nullopt;
  }
  std::string_view number = text.substr(kExpand.size());
  Expansion expansion;
  if (number.ends_with(kOneByOne)) {
    expansion.overlapped = false;
    number.remove_suffix(kOneByOne.size());
  }
  const char* const end = number.data() + number.size();
  const auto [stopped, error] = std::from_chars(number.data(), end, expansion.piece_rows);
  const std::vector<Expansion> possible = expansion.overlapped
                                              ? overlapped_expansions(out, in, tokens)
                                              : std::vector{single_piece_expansion(out, in)};
  return error == std::errc() && stopped == end &&
                 std::find(possible.begin(), possible.end(), expansion) != possible.end()
             ? std::optional(expansion)
             : std::nullopt;
}

int64_t percent_for_key(int64_t nonzeros, int64_t elements) {
  constexpr int64_t kStep = 5;
  const int64_t percent = std::llround(100.0 * static_cast<double>(nonzeros) /
                                       static_cast<double>(std::max<int64_t>(elements, 1)));
  return (percent + kStep / 2) / kStep * kStep;
}

}  // namespace sparsellm
