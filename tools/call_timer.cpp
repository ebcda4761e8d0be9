#include "tools/call_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

// The clock's steps are well below.
constexpr double kStretchSeconds = 1e-3;
constexpr int64_t kMostCalls = 8192;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Spread time_calls(int64_t pieces, const std::function<void(int64_t)>& call, int64_t repeat) {
  require(pieces > 0 && repeat > 0, "{} stretches of {} pieces of work", repeat, pieces);
  const Clock::time_point first = Clock::now();
  for (int64_t piece = 0; piece < pieces; ++piece) {
    call(piece);
  }
  const double each = seconds_since(first) / static_cast<double>(pieces);
  const auto calls = static_cast<int64_t>(std::clamp(
      std::ceil(kStretchSeconds / std::max(each, 1e-9)), 1.0, static_cast<double>(kMostCalls)));
  std::vector<double> seconds;
  int64_t next = 0;
  for (int64_t i = 0; i < repeat; ++i) {
    const Clock::time_point start = Clock::now();
    for (int64_t j = 0; j < calls; ++j) {
      call(next++ % pieces);
    }
    seconds.push_back(seconds_since(start) / static_cast<double>(calls));
  }
  return spread_of(seconds);
}

}  // namespace sparsellm
