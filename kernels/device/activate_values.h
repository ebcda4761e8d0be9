#pragma once

#include <cstdint>

#include "kernels/activation.h"

namespace sparsellm {

// `count` consecutive values in place, on the CPU, for the epilogues of products. A value's result
// does not depend on where it stands.
void activate_values(const Activation& activation, float* values, int64_t count);

}  // namespace sparsellm
