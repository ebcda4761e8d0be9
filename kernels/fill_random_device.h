#pragma once

#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/fill_random.h"
#include "kernels/random_order.h"
#include "kernels/zero_thresholds.h"

namespace sparsellm {

// A fill in the terms of the implementations. Of the 64 random bits of an element the high 32 say
// that it is 0 where they are below `zeros`, or that of its cell; in a row whose zeros are counted
// its place in a random order of the row says so instead. Else the low 16 are its value k, and the
// element is centre + (2 k + 1 - 65536) * step. The sum and the product are rounded to f32 each.
struct RandomFillSteps {
  uint64_t key;
  uint64_t zeros;  // of 2^32
  float centre;
  float step;
  ZeroGrid grid;
  const uint64_t* cell_zeros;  // of the grid, on the device; null: `zeros` for all
  RandomOrder row_order;       // of the elements of a row whose zeros are counted; else of none
  // Of a part of a matrix with so many columns: the index of its first element and its width; with
  // a width of 0 it is all of it.
  int64_t first;
  int64_t width;
  int64_t columns;

  // In the matrix, of element i of x.
  constexpr int64_t index_of(int64_t i) const {
    return width == 0 ? i : first + i / width * columns + i % width;
  }
};
// `cell_zeros`: those of the thresholds, on the device.
RandomFillSteps steps_of(const RandomFill& fill, const ZeroThresholds& thresholds,
                         const uint64_t* cell_zeros);

constexpr uint64_t random_bits(uint64_t key, int64_t index) {
  return mix_bits(key + (static_cast<uint64_t>(index) + 1) * kRandomStep);
}

// `bits`: random_bits() of the element.
constexpr bool is_zero(const RandomFillSteps& steps, uint64_t bits, int64_t index) {
  if (steps.cell_zeros == nullptr) {
    return bits >> 32 < steps.zeros;
  }
  const uint64_t zeros = steps.cell_zeros[steps.grid.cell_of(index)];
  if (steps.row_order.count == 0) {
    return bits >> 32 < zeros;
  }
  const uint64_t seed = uniform_bits(~steps.key, index / steps.grid.columns);
  const auto column = static_cast<uint64_t>(index % steps.grid.columns);
  return place_in(steps.row_order, seed, column) < zeros;
}

// The implementations of fill_random(), which has checked their arguments. There are no
// thresholds if the pattern is uniform.
void fill_random_cpu(const RandomFill& fill, const ZeroThresholds& thresholds, Tensor x,
                     ExecContext& ctx);
void fill_random_cuda(const RandomFill& fill, const ZeroThresholds& thresholds, Tensor x,
                      ExecContext& ctx);

}  // namespace sparsellm
