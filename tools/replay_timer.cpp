#include "tools/replay_timer.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

// Seconds of a piece in each replay, which is counted from the end of the one before. The graphs
// take turns.
std::vector<double> replay(const CudaContext& cuda, const std::vector<Pieces>& graphs,
                           int64_t repeat) {
  std::vector<CudaEvent> ends;
  for (int64_t i = 0; i <= repeat; ++i) {
    ends.emplace_back(cuda, CudaEvent::Timing::yes);
  }
  size_t turns = 0;
  const auto launch_next = [&] { graphs[turns++ % graphs.size()].graph.launch(); };
  for (int64_t i = 0; i < kWarmUp; ++i) {
    launch_next();
  }
  ends.front().record();
  const size_t first = turns;
  for (size_t i = 1; i < ends.size(); ++i) {
    launch_next();
    ends[i].record();
  }
  ends.back().synchronize();
  std::vector<double> seconds;
  for (size_t i = 1; i < ends.size(); ++i) {
    const int64_t count = graphs[(first + i - 1) % graphs.size()].count;
    seconds.push_back(ends[i].seconds_since(ends[i - 1]) / static_cast<double>(count));
  }
  return seconds;
}

}  // namespace

Spread time_replays(const CudaContext& cuda, int64_t pieces,
                    const std::function<void(int64_t)>& enqueue, int64_t repeat) {
  require(pieces > 0 && repeat > 0, "{} replays of {} pieces of work", repeat, pieces);
  // Pieces `begin` to `end`, which begin anew behind the last.
  const auto capture = [&](int64_t begin, int64_t end) {
    return Pieces{.graph = CudaGraph(cuda,
                                     [&] {
                                       for (int64_t i = begin; i < end; ++i) {
                                         enqueue(i % pieces);
                                       }
                                     }),
                  .count = end - begin};
  };
  std::vector<Pieces> graphs;
  graphs.push_back(capture(0, pieces));
  // Two events may bear the same time.
  const double round_seconds =
      std::max(replay(cuda, graphs, 1).front() * static_cast<double>(pieces), 1e-6);
  const auto rounds = static_cast<int64_t>(std::round(kReplaySeconds / round_seconds));
  const int64_t most_rounds = std::max(kMaxGraphPieces / pieces, int64_t{1});
  const int64_t parts =
      std::clamp(static_cast<int64_t>(round_seconds / kReplaySeconds), int64_t{1}, pieces);
  if (rounds > 1) {
    graphs.clear();
    graphs.push_back(capture(0, std::min(rounds, most_rounds) * pieces));
  } else if (parts > 1) {
    graphs.clear();
    for (int64_t i = 0; i < parts; ++i) {
      graphs.push_back(capture(pieces * i / parts, pieces * (i + 1) / parts));
    }
  }
  return spread_of(replay(cuda, graphs, repeat));
}

}  // namespace sparsellm
