#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/zero_pattern.h"

namespace sparsellm {

struct RandomFill {
  uint64_t key = 0;          // the same key gives the same numbers
  float centre = 0.0f;       // of the values,
  float spread = 1.0f;       // which lie between centre - spread and centre + spread, uniformly
  double sparsity = 0.0;     // in [0, 1]: the fraction that is 0 instead, at random places
  ZeroPattern pattern = {};  // where these places are
  int64_t columns = 1;       // of the matrix that x holds; a uniform pattern does not depend on it
  // Where x holds a part of the matrix alone, row by row: the rows of the whole, from where on x
  // has rows and columns, and how many of these. No rows: x holds all of it.
  struct Part {
    int64_t all_rows = 0;
    int64_t first_row = 0;
    int64_t first_column = 0;
    int64_t columns = 0;
  };
  Part part = {};
};

// A key for the tensor of this name.
uint64_t random_key(uint64_t seed, std::string_view name);

// Fills x [n], contiguous, of any floating dtype. An element depends on the fill and its index in
// the matrix alone, where the pattern is not uniform also on the size of that, and has the same
// bits on every device. It takes one of 65536 values, none of which is 0 when the centre is 0 and
// the spread at least 0.002, so that the zeros are those of the sparsity. The random numbers are
// SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
// 2014), whose i-th number needs none of those before it. Waits for the device where the pattern is
// not uniform. Throws Error for a sparsity out of range, a pattern that cannot have it, an n that
// is no number of whole rows, and a part that is not inside.
void fill_random(const RandomFill& fill, Tensor x, ExecContext& ctx);

}  // namespace sparsellm
