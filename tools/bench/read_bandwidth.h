#pragma once

#include <cstdint>

#include "kernels/base/device.h"

namespace sparsellm {

// The read ceiling: bytes per second at which a kernel that does nothing else (on the CPU, a loop
// on all cores) reads `bytes` of memory once, none of it cached before; the median over at least 20
// readings. On CUDA several launch shapes are tried, and the best counts. `bytes` is rounded up to
// 16. Allocates `bytes`, or a few times the cache if that is more. Throws Error.
double measure_read_bandwidth(Device device, int64_t bytes);

}  // namespace sparsellm
