#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/block_shape.h"

namespace sparsellm {

// Where a random matrix has its zeros: everywhere with the same probability, or unevenly, as in
// pruned models; always with the same expected share of zeros in the whole matrix.
struct ZeroPattern {
  enum class Kind : uint8_t {
    uniform,  // chance alone decides
    // The densities of rows are log-normal, clipped at 1. Each row has exactly its share of zeros,
    // rounded up or down at random: with an amount of 0 all have equally many, as they do when a
    // weight is pruned row by row.
    rows,
    columns,       // the same of columns, whose shares are expected ones
    outliers,      // some columns are dense
    dense_blocks,  // some blocks of 64 x 128 are dense
    // The zeros of a matrix of normal weights, rows of it scaled by log-normal factors, below one
    // threshold for all: unlike with `rows`, densities differ the more the fewer nonzeros there
    // are. In a row chance decides.
    magnitude,
    kept_blocks,  // blocks have no zeros or nothing else; chance decides which
  };
  Kind kind = Kind::uniform;
  // Of rows and columns: the standard deviation of the logarithm of a density, before it is
  // clipped, in [0, kMaxDeviation]. Of magnitude that of a row's factor, in the same range. Of
  // outliers and dense_blocks the share that is dense, in [0, 1].
  double amount = 0.0;
  BlockShape block = {};  // of kept_blocks; 1 x 1 for all others

  static constexpr double kMaxDeviation = 8.0;
  static constexpr int64_t kBlockRows = 64;
  static constexpr int64_t kBlockColumns = 128;

  bool operator==(const ZeroPattern&) const = default;
};

// "uniform", "rows:S", "columns:S", "magnitude:S", "outliers:F", "dense-blocks:F" or
// "kept-blocks:RxC"; nothing for any other text, also where a number is out of range.
std::optional<ZeroPattern> parse_zero_pattern(std::string_view text);

// What parse_zero_pattern() takes, for messages.
inline constexpr std::string_view kZeroPatternSyntax =
    "uniform, rows:S, columns:S or magnitude:S with a deviation S from 0 to 8, outliers:F or "
    "dense-blocks:F with a share F from 0 to 1, or kept-blocks:RxC with R and C from 1 to 1024";

// As parse_zero_pattern() takes it, with the fewest digits that give the same number.
std::string to_string(const ZeroPattern& pattern);

// Why a matrix cannot have such zeros with this sparsity (in [0, 1]), in one line that begins with
// the pattern: what is dense alone has too many nonzeros, or the amount is out of range. Empty if
// it can.
std::string why_not(const ZeroPattern& pattern, double sparsity);

}  // namespace sparsellm
