#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/rank_environment.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

class RankSession;  // tools/cli/rank_session.h

// The ranks that share a model (EngineOptions::tensor_parallel): threads of the tool, or processes
// that a launcher has started.
struct RankArgs {
  std::optional<int> degree;
  std::string rendezvous;  // empty: that of the launcher
  double timeout = 60.0;   // seconds

  // Of processes; with_ranks() sets these.
  std::optional<RankEnvironment> launched = {};
  RankSession* session = nullptr;  // of rank 0
  int model = 0;                   // of those that the session knows

  int ranks() const { return degree.value_or(1); }
  std::chrono::milliseconds timeout_ms() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout * 1e3));
  }
};

// --tensor-parallel, --rendezvous and --comm-timeout.
void add_rank_args(CLI::App& app, RankArgs& args);

// --tensor-parallel by another name.
void add_degree_arg(CLI::App& app, const std::string& flag, std::optional<int>& degree,
                    const std::string& description);

using ChooseDevice = std::function<Device(std::string_view name)>;

// The devices of ranks that are threads, of the text of --device: "cuda:2,cuda:3", or one name,
// which is that of all on the CPU and else of the first, where the next ones have the indices that
// follow. Throws UsageError for a GPU that is named twice, for too few and for too many, and what
// `choose` throws for one that is not there.
std::vector<Device> rank_devices(const std::string& text, int ranks,
                                 const ChooseDevice& choose = parse_device);

// The device of a rank that is a process, the `local_rank`-th of its host, from 0; that of a list
// counts on each host.
Device rank_device(const std::string& text, int local_rank,
                   const ChooseDevice& choose = parse_device);

}  // namespace sparsellm
