#include "kernels/block_shape.h"

#include <fmt/format.h>

#include <charconv>

namespace sparsellm {

std::optional<BlockShape> parse_block_shape(std::string_view text) {
  BlockShape block;
  const char* const end = text.data() + text.size();
  const auto [cross, error] = std::from_chars(text.data(), end, block.rows);
  if (error != std::errc() || cross == end || *cross != 'x') {
    return std::nullopt;
  }
  const auto [rest, second_error] = std::from_chars(cross + 1, end, block.columns);
  const bool is_shape = second_error == std::errc() && rest == end && block.in_range();
  return is_shape ? std::optional(block) : std::nullopt;
}

std::string to_string(const BlockShape& block) {
  return fmt::format("{}x{}", block.rows, block.columns);
}

}  // namespace sparsellm
