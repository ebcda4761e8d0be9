#pragma once

#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/fill_random.h"

namespace sparsellm {

// A fill in the terms of the implementations. Of the 64 random bits of an element the high 32 say
// that it is 0 where they are below `zeros`; else the low 16 are its value k, and the element is
// centre + (2 k + 1 - 65536) * step. The sum and the product are rounded to f32 each.
struct RandomFillSteps {
  uint64_t key;
  uint64_t zeros;  // of 2^32
  float centre;
  float step;
};
RandomFillSteps steps_of(const RandomFill& fill);

constexpr uint64_t random_bits(uint64_t key, int64_t index) {
  return mix_bits(key + (static_cast<uint64_t>(index) + 1) * kRandomStep);
}

// The implementations behind fill_random(), which has checked their arguments.
void fill_random_cpu(const RandomFill& fill, Tensor x, ExecContext& ctx);
void fill_random_cuda(const RandomFill& fill, Tensor x, ExecContext& ctx);

}  // namespace sparsellm
