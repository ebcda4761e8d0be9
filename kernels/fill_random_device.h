#pragma once

#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/fill_random.h"
#include "kernels/zero_thresholds.h"

namespace sparsellm {

// A fill in the terms of the implementations. Of the 64 random bits of an element the high 32 say
// that it is 0 where they are below `zeros`, or that of its cell; else the low 16 are its value k,
// and the element is centre + (2 k + 1 - 65536) * step. The sum and the product are rounded to f32
// each.
struct RandomFillSteps {
  uint64_t key;
  uint64_t zeros;  // of 2^32
  float centre;
  float step;
  ZeroGrid grid;
  const uint64_t* cell_zeros;  // of the grid, on the device; null: `zeros` for all
};
RandomFillSteps steps_of(const RandomFill& fill, const ZeroGrid& grid, const uint64_t* cell_zeros);

constexpr uint64_t random_bits(uint64_t key, int64_t index) {
  return mix_bits(key + (static_cast<uint64_t>(index) + 1) * kRandomStep);
}

constexpr uint64_t zeros_at(const RandomFillSteps& steps, int64_t index) {
  return steps.cell_zeros == nullptr ? steps.zeros : steps.cell_zeros[steps.grid.cell_of(index)];
}

// The implementations of fill_random(), which has checked their arguments. There are no
// thresholds if the pattern is uniform.
void fill_random_cpu(const RandomFill& fill, const ZeroThresholds& thresholds, Tensor x,
                     ExecContext& ctx);
void fill_random_cuda(const RandomFill& fill, const ZeroThresholds& thresholds, Tensor x,
                      ExecContext& ctx);

}  // namespace sparsellm
