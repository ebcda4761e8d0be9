#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "kernels/block_shape.h"

namespace sparsellm {

// How the elements of a weight that become zero are chosen.
struct PruneMethod {
  enum class Kind : uint8_t {
    none,
    magnitude,  // the smallest |w|
    random,     // uniformly
    wanda,      // the smallest |w| * norm (Wanda, Sun et al. 2024, section 3)
    n_m,        // in each group of `group` elements of a row all but the `kept` largest
  };
  Kind kind = Kind::none;
  int32_t kept = 0;   // of n_m: N
  int32_t group = 0;  // of n_m: M

  friend bool operator==(const PruneMethod&, const PruneMethod&) = default;
};

// "none", "magnitude", "random", "wanda", or N:M with 1 <= N <= M <= 64, such as "2:4". Throws
// Error for anything else.
PruneMethod parse_prune_method(std::string_view text);
std::string to_string(PruneMethod method);  // the same text

// What the scores of elements are compared with.
enum class PruneScope : uint8_t {
  row,     // those of the same row: the weights of one output feature
  matrix,  // all others
};
std::string_view name_of(PruneScope scope);

struct PruneSettings {
  PruneMethod method;
  PruneScope scope = PruneScope::row;  // of magnitude and random; row for the others
  double sparsity = 0.0;               // in [0, 1]; not used by none and n_m
  uint64_t seed = 0;                   // of random
  BlockShape block = {};               // of magnitude and random: what becomes zero as a whole
  // f32 [columns] in host memory: for wanda, and for n_m if its scores are to be Wanda's (empty:
  // they are magnitudes). The L2 norms of the input features over the calibration tokens; not
  // negative.
  Tensor norms = {};
};

// The method and what it chooses among: "magnitude", "magnitude of 4x8 blocks".
std::string describe_pruning(const PruneSettings& settings);

// Sets elements of w to zero, in place. w [rows, columns] (out, in) is f16, bf16 or f32, in host
// memory; its rows may be strided. The others stay as they are, bit by bit.
//
// With a sparsity S exactly round(S * n) elements become zero (halves up), where n is the number of
// columns, in each row, or with PruneScope::matrix the number of all elements. Elements that are 0
// or -0 count, and are the first to be chosen: a matrix that is as sparse already does not change
// (except for the sign of zeros). After them the lowest scores are chosen, and of equal scores
// those that come first in row-major order, so that the result depends neither on the number of
// threads nor on the machine.
//
// Blocks larger than 1 x 1 are kept or become zero as a whole: GeneralSparse's structured pruning
// (Wang et al. 2025, section 4.4). Then all of the above holds for blocks in place of elements, and
// for rows of blocks in place of rows; the score of a block is the mean |w| of its elements. Where
// sides are no multiples of the block's, those at the edge are smaller, and the share of elements
// that are zero is a little off.
//
// N:M keeps at most N of the elements [i * M, (i + 1) * M) of a row: of equal scores the later
// ones. Of a last group with fewer than M elements it keeps at most N as well, since the row
// followed by zeros up to a multiple of M is then N:M sparse, and nothing is lost for it in vain.
//
// Infinity is a number like any other. Throws Error, and leaves w as it was, for a NaN in w or in
// the norms, for a score of infinity * 0, for a negative norm, and for settings that make no sense.
// None does not look at w. Takes some KiB of memory per thread, and 8 bytes for every 16384
// elements; with blocks, 4
// for every block.
void prune(Tensor w, const PruneSettings& settings, ThreadPool& threads);

}  // namespace sparsellm
