#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/tensor.h"

namespace sparsellm::testing {

// A small matrix of f16 or bf16 whose zeros lie as unevenly as they may: rows, columns and blocks
// have densities of their own, from 0 to 1, so that there are full blocks beside empty ones. A seed
// says all: up to 705 rows and 2,099 columns, mostly far fewer and of odd sizes, where the nonzeros
// are and any bits that make one, and whether zeros may be negative.
OwnedTensor uneven_weight(uint64_t seed);

}  // namespace sparsellm::testing
