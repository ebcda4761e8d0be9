#pragma once

#include <cstdint>

#include "kernels/base/exec.h"

namespace sparsellm {

// In place, on the CUDA device of ctx: each of `count` numbers becomes the sum of all up to it,
// modulo 2^32. Complete on return. It is how an encoder makes starts of sizes.
void running_totals_cuda(uint32_t* numbers, int64_t count, const ExecContext& ctx);

}  // namespace sparsellm
