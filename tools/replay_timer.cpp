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

// Seconds of each replay, from the end of the one before.
std::vector<double> replay(const CudaContext& cuda, const CudaGraph& graph, int64_t repeat) {
  std::vector<CudaEvent> ends;
  for (int64_t i = 0; i <= repeat; ++i) {
    ends.emplace_back(cuda, CudaEvent::Timing::yes);
  }
  for (int64_t i = 0; i < kWarmUp; ++i) {
    graph.launch();
  }
  ends.front().record();
  for (size_t i = 1; i < ends.size(); ++i) {
    graph.launch();
    ends[i].record();
  }
  ends.back().synchronize();
  std::vector<double> seconds;
  for (size_t i = 1; i < ends.size(); ++i) {
    seconds.push_back(ends[i].seconds_since(ends[i - 1]));
  }
  return seconds;
}

}  // namespace

Spread time_replays(const CudaContext& cuda, int64_t pieces,
                    const std::function<void(int64_t)>& enqueue, int64_t repeat) {
  require(pieces > 0 && repeat > 0, "{} replays of {} pieces of work", repeat, pieces);
  const auto capture = [&](int64_t rounds) {
    return CudaGraph(cuda, [&] {
      for (int64_t round = 0; round < rounds; ++round) {
        for (int64_t piece = 0; piece < pieces; ++piece) {
          enqueue(piece);
        }
      }
    });
  };
  CudaGraph graph = capture(1);
  const double round_seconds = replay(cuda, graph, 1).front();
  // Two events may bear the same time.
  const double wanted = std::ceil(kReplaySeconds / std::max(round_seconds, 1e-6));
  const int64_t rounds = std::clamp(static_cast<int64_t>(wanted), int64_t{1},
                                    std::max(kMaxGraphPieces / pieces, int64_t{1}));
  if (rounds > 1) {
    graph = capture(rounds);
  }
  return scaled(spread_of(replay(cuda, graph, repeat)), 1.0 / static_cast<double>(rounds * pieces));
}

}  // namespace sparsellm
