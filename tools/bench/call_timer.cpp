#include "tools/bench/call_timer.h"

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
constexpr int64_t kMaxCalls = 8192;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The pieces of a work, stretch by stretch.
class Stretches {
 public:
  explicit Stretches(const TimedWork& work) : work_(work) {
    const Clock::time_point first = Clock::now();
    for (int64_t piece = 0; piece < work_.pieces; ++piece) {
      work_.run(piece);
    }
    const double each = seconds_since(first) / static_cast<double>(work_.pieces);
    calls_ = static_cast<int64_t>(std::clamp(std::ceil(kStretchSeconds / std::max(each, 1e-9)), 1.0,
                                             static_cast<double>(kMaxCalls)));
  }

  // Seconds of a piece.
  double time_next() {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < calls_; ++i) {
      work_.run(next_++ % work_.pieces);
    }
    return seconds_since(start) / static_cast<double>(calls_);
  }

 private:
  const TimedWork& work_;
  int64_t calls_ = 0;
  int64_t next_ = 0;
};

}  // namespace

Spread time_calls(int64_t pieces, const std::function<void(int64_t)>& call, int64_t repeat) {
  const TimedWork work{.pieces = pieces, .run = call};
  return spread_of(time_calls_by_turns({&work, 1}, repeat).front());
}

std::vector<std::vector<double>> time_calls_by_turns(std::span<const TimedWork> works,
                                                     int64_t repeat) {
  std::vector<Stretches> stretches;
  for (const TimedWork& work : works) {
    require(work.pieces > 0 && repeat > 0, "{} stretches of {} pieces of work", repeat,
            work.pieces);
    stretches.emplace_back(work);
  }
  std::vector<std::vector<double>> seconds(works.size());
  for (int64_t i = 0; i < repeat; ++i) {
    for (size_t work = 0; work < works.size(); ++work) {
      seconds[work].push_back(stretches[work].time_next());
    }
  }
  return seconds;
}

}  // namespace sparsellm
