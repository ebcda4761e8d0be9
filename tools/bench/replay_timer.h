#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "tools/bench/timed_work.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

// Seconds that one piece of work takes on the device, without the launching by the CPU. enqueue(i)
// puts the i-th of `pieces` pieces on the context's stream, and neither allocates nor synchronises.
// They are captured one after the other in a CUDA graph, as many rounds as make about a
// millisecond, or in several graphs, if one round takes more: long pieces keep the device as busy,
// and as hot, as short ones do. After some warm-up there are `repeat` replays without a pause, and
// the time between the ends of two is divided by the pieces in one. Throws Error.
Spread time_replays(const CudaContext& cuda, int64_t pieces,
                    const std::function<void(int64_t)>& enqueue, int64_t repeat);

// The same of several works by turns, a replay of each in every one of `repeat` rounds: all values
// by work.
std::vector<std::vector<double>> time_replays_by_turns(const CudaContext& cuda,
                                                       std::span<const TimedWork> works,
                                                       int64_t repeat);

}  // namespace sparsellm
