#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/comm.h"
#include "kernels/base/rendezvous.h"

namespace sparsellm {

// A model that several processes load their shares of.
struct RankModel {
  // The same for copies of the model, another for other models; printable, at most 120 bytes.
  std::string fingerprint;
  // run_rank() of it, or run_random_rank().
  std::function<void(std::string_view rank_options, Communicator& comm)> run;
};

// The process of another rank than 0: computes its part of all engines that rank 0 has, until that
// ends (tools/cli/rank_session.h). Ctrl-C is then for rank 0 to heed. Throws Error with the one
// line that all print when something has gone wrong, and Interrupted if rank 0 was interrupted.
void serve_rank(const std::string& tool, const RendezvousOptions& options,
                const std::vector<RankModel>& models);

}  // namespace sparsellm
