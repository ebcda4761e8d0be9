#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/cuda_context.h"
#include "tools/bench_statistics.h"

namespace sparsellm {

// Seconds that one piece of work takes on the device, without the launching by the CPU. enqueue(i)
// puts the i-th of `pieces` pieces on the context's stream, and neither allocates nor synchronises.
// They are captured one after the other in a CUDA graph, as many rounds as make about a
// millisecond; after some warm-up the graph is replayed `repeat` times without a pause, and the
// time between the ends of two replays is divided by the pieces in it. Throws Error.
Spread time_replays(const CudaContext& cuda, int64_t pieces,
                    const std::function<void(int64_t)>& enqueue, int64_t repeat);

}  // namespace sparsellm
