#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sparsellm {

// Of the blocks that a matrix is cut into, from its first row and column on. Those at its right and
// lower edge are smaller where they have to be.
struct BlockShape {
  int64_t rows = 1;
  int64_t columns = 1;

  static constexpr int64_t kMaxSide = 1024;

  constexpr int64_t elements() const { return rows * columns; }
  constexpr bool in_range() const {
    return rows >= 1 && rows <= kMaxSide && columns >= 1 && columns <= kMaxSide;
  }
  bool operator==(const BlockShape&) const = default;
};

// "4x8" is 4 rows by 8 columns; nothing for any other text, also where a side is not in
// [1, kMaxSide].
std::optional<BlockShape> parse_block_shape(std::string_view text);

// What parse_block_shape() takes, for messages.
inline constexpr std::string_view kBlockShapeSyntax = "RxC with R and C from 1 to 1024";

std::string to_string(const BlockShape& block);  // as parse_block_shape() takes it

}  // namespace sparsellm
