#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/tools/run_program.h"

namespace sparsellm::testing {

// A process of a tool that is one of several ranks.
struct RankProcess {
  std::vector<std::string> args;
  std::map<std::string, std::string> environment;  // what the launcher sets
  std::function<void()> before_exec = {};
};

// The variables of torchrun, but for MASTER_ADDR and MASTER_PORT.
std::map<std::string, std::string> launched_as(int rank, int size);

// The ranks of one host with the same arguments.
std::vector<RankProcess> ranks_of(int size, const std::vector<std::string>& args);

// Runs them side by side to their end; `meanwhile` gets their process ids and the file that the
// stdout of rank 0 goes to. What hangs is killed after 30 seconds.
using WithRanks =
    std::function<void(const std::vector<pid_t>& ranks, const std::filesystem::path& out)>;
std::vector<Outcome> run_ranks(const char* program, const std::vector<RankProcess>& ranks,
                               const WithRanks& meanwhile = {});

}  // namespace sparsellm::testing
