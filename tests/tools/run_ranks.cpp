#include "tests/tools/run_ranks.h"

#include <stdlib.h>
#include <unistd.h>

namespace sparsellm::testing {
namespace {

constexpr unsigned kMostSeconds = 30;

// One after the other starts in what its predecessor calls while it runs.
class Ranks {
 public:
  Ranks(const char* program, const std::vector<RankProcess>& ranks, const WithRanks& meanwhile)
      : program_(program), ranks_(ranks), meanwhile_(meanwhile), outcomes_(ranks.size()) {}

  std::vector<Outcome> run() {
    run_from(0);
    return std::move(outcomes_);
  }

 private:
  void run_from(size_t rank) {
    const RankProcess& process = ranks_[rank];
    RunOptions options;
    options.before_exec = [&process] {
      ::unsetenv("MASTER_ADDR");
      ::unsetenv("MASTER_PORT");
      for (const auto& [name, value] : process.environment) {
        ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
      }
      if (process.before_exec) {
        process.before_exec();
      }
      ::alarm(kMostSeconds);
    };
    options.meanwhile = [this, rank](pid_t child, const std::filesystem::path& out) {
      children_.push_back(child);
      out_ = rank == 0 ? out : out_;
      if (rank + 1 < ranks_.size()) {
        run_from(rank + 1);
      } else if (meanwhile_) {
        meanwhile_(children_, out_);
      }
    };
    outcomes_[rank] = run_program(program_, process.args, options);
  }

  const char* program_;
  const std::vector<RankProcess>& ranks_;
  const WithRanks& meanwhile_;
  std::vector<Outcome> outcomes_;
  std::vector<pid_t> children_;
  std::filesystem::path out_;
};

}  // namespace

std::map<std::string, std::string> launched_as(int rank, int size) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}};
}

std::vector<RankProcess> ranks_of(int size, const std::vector<std::string>& args) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back({.args = args, .environment = launched_as(rank, size)});
  }
  return ranks;
}

std::vector<Outcome> run_ranks(const char* program, const std::vector<RankProcess>& ranks,
                               const WithRanks& meanwhile) {
  return Ranks(program, ranks, meanwhile).run();
}

}  // namespace sparsellm::testing
