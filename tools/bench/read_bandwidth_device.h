#pragma once

#include <cstdint>

#include "kernels/base/exec.h"

namespace sparsellm {

// measure_read_bandwidth on the context's CUDA device: read_bandwidth_cuda.cu, or in a CPU-only
// build no_cuda.cpp.
double read_bandwidth_cuda(int64_t bytes, ExecContext& ctx);

}  // namespace sparsellm
