#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tools/bench/timed_work.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

// Seconds that one piece of work takes on the CPU: call(i) does the i-th of `pieces`, and returns
// when it is done. After a round of all pieces for warm-up as many follow, one after the other, as
// make about a millisecond; the spread is over `repeat` such stretches. Throws Error.
Spread time_calls(int64_t pieces, const std::function<void(int64_t)>& call, int64_t repeat);

// The same of several works by turns, a stretch of each in every one of `repeat` rounds: all values
// by work.
std::vector<std::vector<double>> time_calls_by_turns(std::span<const TimedWork> works,
                                                     int64_t repeat);

}  // namespace sparsellm
