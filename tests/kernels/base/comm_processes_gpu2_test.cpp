// Ranks that are processes, with a GPU each: this program again, as one rank.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "kernels/base/error.h"
#include "tests/kernels/base/comm_gpu2_fixture.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

void check_everything(GpuRank& rank) {
  require(rank.comm->has(CommWay::one_shot_packets), "{}", rank.comm->why_no_own_kernels());
  check_sums(rank, true);
  check_gathers(rank);
  check_broadcasts(rank);
  check_graphs(rank);
  check_deferred_sums(rank);
  check_random_calls(rank, 5, [](int64_t number) { return number < 2000; });
}

void check_nccl(GpuRank& rank) {
  check_sums(rank, false);
  check_gathers(rank);
  check_broadcasts(rank);
}

// Rank 1 is gone in the middle of the others' sums.
void be_killed(GpuRank& rank) {
  const RankTensor y = rank.tensor(DType::f16, {1, 7168});
  for (int i = 0; i < 100; ++i) {
    rank.comm->all_reduce_sum(y.view(), rank.exec);
    rank.cuda.synchronize();
    rank.comm->check();
    if (i == 50 && rank.comm->rank() == 1) {
      std::raise(SIGKILL);
    }
  }
}

// What a process does that is one rank, and how.
struct Role {
  GpuRankBody body;
  CudaCommOptions options = {};
};

const std::map<std::string, Role>& roles() {
  static const std::map<std::string, Role> all{
      {"everything", {check_everything}},
      {"nccl", {check_nccl, {.own_kernels = false}}},
      {"killed", {be_killed}},
  };
  return all;
}

struct Ended {
  int status = 0;
  std::string said;
};

// Starts this program once for each rank, and waits until all have ended.
std::vector<Ended> run_processes(int ranks, const std::string& role) {
  const TempDir folder;
  std::vector<pid_t> processes;
  const auto output = [&](int rank) { return folder.path() / std::to_string(rank); };
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> words{
        "comm_gpu2_test", "--body=" + role, "--address=" + (folder.path() / "meet").string(),
        "--rank=" + std::to_string(rank), "--size=" + std::to_string(ranks)};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output(rank).c_str(),
                                     O_WRONLY | O_CREAT, 0600);
    pid_t process = 0;
    const int error =
        ::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    require(error == 0, "a process cannot be started");
    processes.push_back(process);
  }
  std::vector<Ended> all;
  for (int rank = 0; rank < ranks; ++rank) {
    Ended ended;
    ::waitpid(processes[static_cast<size_t>(rank)], &ended.status, 0);
    std::ostringstream text;
    text << std::ifstream(output(rank)).rdbuf();
    ended.said = text.str();
    all.push_back(ended);
  }
  return all;
}

class CommProcessesGpu2 : public CommGpu2 {
 protected:
  void SetUp() override {
    if (comm_test_flags().one_gpu) {
      GTEST_SKIP() << "kernels of two processes do not run on one GPU at once";
    }
    CommGpu2::SetUp();
  }
};

TEST_F(CommProcessesGpu2, OwnKernelsDoEverything) {
  for (const int ranks : rank_counts()) {
    for (const Ended& ended : run_processes(ranks, "everything")) {
      EXPECT_EQ(ended.status, 0) << ended.said;
      EXPECT_EQ(ended.said, "");
    }
  }
}

TEST_F(CommProcessesGpu2, NcclAlone) {
  bool is_there = true;
  for (const Ended& ended : run_processes(2, "nccl")) {
    const bool no_nccl = ended.said.find("NCCL cannot be loaded") != std::string::npos ||
                         ended.said.find("this build has no NCCL") != std::string::npos;
    is_there = is_there && !no_nccl;
    EXPECT_TRUE(ended.said.empty() || no_nccl) << ended.said;
  }
  if (!is_there) {
    GTEST_SKIP() << "there is no NCCL";
  }
}

TEST_F(CommProcessesGpu2, AKilledProcessEndsTheOther) {
  const std::vector<Ended> ended = run_processes(2, "killed");
  EXPECT_EQ(ended[0].said, "rank 1 (cuda:1): connection closed");
  EXPECT_TRUE(WIFSIGNALED(ended[1].status));
}

// The value of "--name=value".
bool take_flag(const std::string& word, const std::string& name, std::string& value) {
  const std::string begin = "--" + name + "=";
  if (!word.starts_with(begin)) {
    return false;
  }
  value = word.substr(begin.size());
  return true;
}

int run_program(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  CommTestFlags& flags = comm_test_flags();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    std::string number;
    if (word == "--one-gpu") {
      flags.one_gpu = true;
    } else if (take_flag(word, "stress", number)) {
      flags.stress_seconds = std::stoi(number);
    } else if (take_flag(word, "rank", number)) {
      flags.rank = std::stoi(number);
    } else if (take_flag(word, "size", number)) {
      flags.size = std::stoi(number);
    } else if (!take_flag(word, "body", flags.body) && !take_flag(word, "address", flags.address)) {
      std::fprintf(stderr, "unknown flag %s; known are --one-gpu and --stress=SECONDS\n", argv[i]);
      return 2;
    }
  }
  if (flags.one_gpu) {
    // Queues of ranks that share one of the device's would wait for each other.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  }
  // NVLink multicast stays off, as in the tools.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  if (flags.body.empty()) {
    return RUN_ALL_TESTS();
  }
  const Role& role = roles().at(flags.body);
  const std::string thrown = run_gpu_rank_process(flags, role.body, role.options);
  std::fputs(thrown.c_str(), stdout);
  return thrown.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) { return sparsellm::run_program(argc, argv); }
