#include "tools/bench/replay_timer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// The start of a graph takes some microseconds in which nothing is computed.
constexpr double kReplaySeconds = 1e-3;
constexpr int64_t kMaxGraphPieces = 8192;
constexpr int64_t kWarmUp = 3;

struct Pieces {
  CudaGraph graph;
  int64_t count;
};

// The graphs of a work, which take turns.
class Replays {
 public:
  explicit Replays(std::vector<Pieces> graphs) : graphs_(std::move(graphs)) {}

  // Returns the pieces in the graph.
  int64_t launch_next() {
    const Pieces& next = graphs_[turns_++ % graphs_.size()];
    next.graph.launch();
    return next.count;
  }

 private:
  std::vector<Pieces> graphs_;
  size_t turns_ = 0;
};

// Seconds of a piece of each work in each replay, which is counted from the end of the one before,
// of whatever work.
std::vector<std::vector<double>> replay(const CudaContext& cuda, std::vector<Replays>& works,
                                        int64_t repeat) {
  std::vector<CudaEvent> ends;
  const int64_t replays = repeat * std::ssize(works);
  for (int64_t i = 0; i <= replays; ++i) {
    ends.emplace_back(cuda, CudaEvent::Timing::yes);
  }
  for (int64_t i = 0; i < kWarmUp; ++i) {
    for (Replays& work : works) {
      work.launch_next();
    }
  }
  ends.front().record();
  std::vector<int64_t> counts;
  for (size_t i = 1; i < ends.size(); ++i) {
    counts.push_back(works[(i - 1) % works.size()].launch_next());
    ends[i].record();
  }
  ends.back().synchronize();
  std::vector<std::vector<double>> seconds(works.size());
  for (size_t i = 1; i < ends.size(); ++i) {
    seconds[(i - 1) % works.size()].push_back(ends[i].seconds_since(ends[i - 1]) /
                                              static_cast<double>(counts[i - 1]));
  }
  return seconds;
}

// Pieces `begin` to `end`, which begin anew after the last.
Pieces capture(const CudaContext& cuda, const TimedWork& work, int64_t begin, int64_t end) {
  return {.graph = CudaGraph(cuda,
                             [&] {
                               for (int64_t i = begin; i < end; ++i) {
                                 work.run(i % work.pieces);
                               }
                             }),
          .count = end - begin};
}

// In as many graphs as the time of a round asks for.
Replays capture(const CudaContext& cuda, const TimedWork& work) {
  const int64_t pieces = work.pieces;
  std::vector<Pieces> graphs;
  graphs.push_back(capture(cuda, work, 0, pieces));
  std::vector<Replays> round;
  round.emplace_back(std::move(graphs));
  // Two events may bear the same time.
  const double round_seconds =
      std::max(replay(cuda, round, 1).front().front() * static_cast<double>(pieces), 1e-6);
  const auto rounds = static_cast<int64_t>(std::round(kReplaySeconds / round_seconds));
  const int64_t most_rounds = std::max(kMaxGraphPieces / pieces, int64_t{1});
  const int64_t parts =
      std::clamp(static_cast<int64_t>(round_seconds / kReplaySeconds), int64_t{1}, pieces);
  std::vector<Pieces> others;
  if (rounds > 1) {
    others.push_back(capture(cuda, work, 0, std::min(rounds, most_rounds) * pieces));
  } else if (parts > 1) {
    for (int64_t i = 0; i < parts; ++i) {
      others.push_back(capture(cuda, work, pieces * i / parts, pieces * (i + 1) / parts));
    }
  }
  return others.empty() ? std::move(round.front()) : Replays(std::move(others));
}

}  // namespace

Spread time_replays(const CudaContext& cuda, int64_t pieces,
                    const std::function<void(int64_t)>& enqueue, int64_t repeat) {
  const TimedWork work{.pieces = pieces, .run = enqueue};
  return spread_of(time_replays_by_turns(cuda, {&work, 1}, repeat).front());
}

std::vector<std::vector<double>> time_replays_by_turns(const CudaContext& cuda,
                                                       std::span<const TimedWork> works,
                                                       int64_t repeat) {
  std::vector<Replays> replays;
  for (const TimedWork& work : works) {
    require(work.pieces > 0 && repeat > 0, "{} replays of {} pieces of work", repeat, work.pieces);
    replays.push_back(capture(cuda, work));
  }
  return replay(cuda, replays, repeat);
}

}  // namespace sparsellm
