// The programs with several ranks: as threads, and as processes that a launcher has started.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run/batch_folder.h"
#include "tests/tools/run_ranks.h"

namespace sparsellm {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using testing::Outcome;
using testing::RankProcess;
using testing::ranks_of;
using testing::run_ranks;
using Words = std::vector<std::string>;

std::string llama() { return testing::data("models/fable-llama-relu-8m").string(); }
std::string opt() { return testing::data("models/fable-opt-8m").string(); }
std::string text_file() { return testing::data("text/peter_pan.txt").string(); }

Words joined(Words first, const Words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// Greedy.
Words run_args(const Words& more = {}) {
  return joined({"-m", llama(), "--device", "cpu", "-t", "2", "-p", "The king had", "-n", "12",
                 "--temp", "0", "--quiet"},
                more);
}

Outcome run(const char* program, const Words& args) { return testing::run_program(program, args); }

// A folder with a place where the ranks meet.
class Meeting {
 public:
  Words at(const Words& args) const { return joined(args, {"--rendezvous", path()}); }
  std::string path() const { return (folder_.path() / "meet").string(); }

 private:
  testing::TempDir folder_;
};

void expect_line(const Outcome& outcome, const std::string& line) {
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, line + "\n");
}

void wait_until(const std::function<bool()>& ready) {
  const auto deadline = Clock::now() + 20s;
  while (!ready() && Clock::now() < deadline) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(ready());
}

// Sends the signal to one rank; all others are to end soon after.
class Blow {
 public:
  Blow(int rank, int signal, std::function<bool(const std::vector<pid_t>&, const fs::path&)> when)
      : rank_(rank), signal_(signal), when_(std::move(when)) {}
  ~Blow() {
    if (!testing::kSanitized) {
      EXPECT_LT(Clock::now() - time_, 5s);
    }
  }
  Blow(const Blow&) = delete;
  Blow& operator=(const Blow&) = delete;

  testing::WithRanks strike() {
    return [this](const std::vector<pid_t>& ranks, const fs::path& out) {
      wait_until([&] { return when_(ranks, out); });
      time_ = Clock::now();
      ::kill(ranks.at(static_cast<size_t>(rank_)), signal_);
    };
  }

 private:
  int rank_;
  int signal_;
  std::function<bool(const std::vector<pid_t>&, const fs::path&)> when_;
  Clock::time_point time_ = Clock::now();
};

bool has_output(const std::vector<pid_t>&, const fs::path& out) { return fs::file_size(out) > 0; }

Words endless() {
  return {"-m", llama(), "--device", "cpu",          "-t",     "2", "-p",
          "a",  "-n",    "1000",     "--ignore-eos", "--temp", "0", "--quiet"};
}

TEST(RankThreads, RunSaysTheSame) {
  const Outcome one = run("sparsellm-run", run_args());
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const Outcome two = run("sparsellm-run", run_args({"--tensor-parallel", "2"}));
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
}

TEST(RankThreads, WhatCannotBeIsRefused) {
  const auto refused = [](const Words& more, int exit_code, const std::string& why) {
    const Outcome outcome = run("sparsellm-run", run_args(more));
    EXPECT_EQ(outcome.exit_code, exit_code);
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  };
  refused({"--tensor-parallel", "3"}, 1, "3 GPUs cannot share 4 attention heads");
  refused({"--tensor-parallel", "0"}, 2, "--tensor-parallel");
  refused({"--rendezvous", "here:1"}, 2, "--rendezvous is for processes");
  const Outcome list = run(
      "sparsellm-run", {"-m", llama(), "-p", "a", "--tensor-parallel", "2", "--device", "cpu,cpu"});
  EXPECT_EQ(list.exit_code, 2);
  EXPECT_NE(list.err.find("--device \"cpu,cpu\": a list is of GPUs"), std::string::npos)
      << list.err;
}

TEST(RankThreads, FitIsOfOneRank) {
  const auto fit = [](const char* ranks) {
    const Outcome outcome = run("sparsellm-run", {"-m", llama(), "--device", "cpu", "--fit",
                                                  "--json", "--tensor-parallel", ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const nlohmann::json one = fit("1");
  const nlohmann::json two = fit("2");
  EXPECT_EQ(one.at("ranks"), 1);
  EXPECT_EQ(two.at("ranks"), 2);
  EXPECT_EQ(two.at("linear_weights")[0].at("bytes").get<int64_t>() * 2,
            one.at("linear_weights")[0].at("bytes"));
  EXPECT_EQ(two.at("kv_bytes_per_token").get<int64_t>() * 2, one.at("kv_bytes_per_token"));
}

TEST(RankThreads, EvalComparesDegrees) {
  const testing::TempDir folder;
  const fs::path text = folder.write("text", testing::read_file(text_file()).substr(0, 2000));
  const Words args{"--text",   text.string(), "--context", "64",
                   "--device", "cpu",         "--quiet",   "--json"};
  const Outcome compared =
      run("sparsellm-eval", joined({"compare", llama(), "--tensor-parallel-b", "2"}, args));
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const auto result = nlohmann::json::parse(compared.out);
  EXPECT_EQ(result.at("device_a"), "cpu");
  EXPECT_EQ(result.at("device_b"), "cpu, 2 ranks");
  EXPECT_LT(result.at("kl_max"), 1e-6);
  const Outcome scored =
      run("sparsellm-eval", joined({"perplexity", "-m", llama(), "--tensor-parallel", "2"}, args));
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_NEAR(nlohmann::json::parse(scored.out).at("perplexity"),
              result.at("perplexity_a").get<double>(), 1e-3);
  const Outcome neurons =
      run("sparsellm-eval", joined({"activation", "-m", llama(), "--tensor-parallel", "2"}, args));
  EXPECT_EQ(neurons.exit_code, 0) << neurons.err;
}

Words throughput_args(const Words& more) {
  return joined({"throughput", "--config", llama() + "/config.json", "--sparsity", "0.7",
                 "--device", "cpu", "--batch", "2", "--prompt", "5", "--output", "6", "--repeat",
                 "1", "--no-layers", "--quiet", "--format", "jsonl"},
                more);
}

nlohmann::json throughput_row(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t last = outcome.out.rfind('\n', outcome.out.size() - 2);
  return nlohmann::json::parse(outcome.out.substr(last + 1));
}

TEST(RankThreads, ThroughputSaysHowMany) {
  const Outcome two = run("sparsellm-bench", throughput_args({"--tensor-parallel", "2"}));
  const auto row = throughput_row(two);
  EXPECT_EQ(row.at("ranks"), 2);
  EXPECT_EQ(row.at("kv_used_gib"),
            std::ldexp(2.0 * 16 * 8192, -30));  // half of all keys and values
  EXPECT_NE(two.out.find("\"devices\":\"cpu, 2 ranks\""), std::string::npos) << two.out;
}

TEST(RankProcesses, SayWhatOneSays) {
  const Outcome one = run("sparsellm-run", run_args());
  const Meeting meeting;
  const std::vector<Outcome> two = run_ranks("sparsellm-run", ranks_of(2, meeting.at(run_args())));
  for (const Outcome& outcome : two) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_EQ(two[0].out, one.out);
  EXPECT_EQ(two[1].out, "");
}

// Of two models, and at the port of the launcher's environment.
TEST(RankProcesses, CompareAtThePortOfTheLauncher) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<struct sockaddr*>(&address), size), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<struct sockaddr*>(&address), &size), 0);
  ::close(listener);

  const testing::TempDir folder;
  const fs::path text = folder.write("text", testing::read_file(text_file()).substr(0, 1500));
  std::vector<RankProcess> ranks =
      ranks_of(2, {"compare", llama(), "--activation-sparsity-b", "exact", "--text", text.string(),
                   "--context", "64", "--device", "cpu", "--quiet", "--json"});
  for (RankProcess& rank : ranks) {
    rank.environment["MASTER_ADDR"] = "127.0.0.1";
    rank.environment["MASTER_PORT"] = std::to_string(ntohs(address.sin_port));
  }
  const std::vector<Outcome> two = run_ranks("sparsellm-eval", ranks);
  EXPECT_EQ(two[1].exit_code, 0) << two[1].err;
  ASSERT_EQ(two[0].exit_code, 0) << two[0].err;
  const auto result = nlohmann::json::parse(two[0].out);
  EXPECT_EQ(result.at("device_b"), "cpu, 2 ranks");
  EXPECT_EQ(result.at("activation_sparsity_b").at("mode"), "exact");
  EXPECT_EQ(result.at("kl_max"), 0.0);
}

TEST(RankProcesses, ThroughputOfRandomWeights) {
  const Meeting meeting;
  std::vector<RankProcess> ranks = ranks_of(2, meeting.at(throughput_args({})));
  const std::vector<Outcome> two = run_ranks("sparsellm-bench", ranks);
  EXPECT_EQ(throughput_row(two[0]).at("ranks"), 2);
  EXPECT_EQ(two[1].out + two[1].err, "");
  ranks[1].args.insert(ranks[1].args.end(), {"--seed", "1"});
  for (const Outcome& outcome : run_ranks("sparsellm-bench", ranks)) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.err.find("rank 1 (cpu) has another model than rank 0: 'LlamaForCausalLM, 8 "
                               "layers, config "),
              std::string::npos)
        << outcome.err;
  }
}

TEST(RankProcesses, WhatDoesNotFitTogetherIsRefused) {
  const auto all_say = [](const std::vector<RankProcess>& ranks, const std::string& why) {
    for (const Outcome& outcome : run_ranks("sparsellm-run", ranks)) {
      EXPECT_EQ(outcome.exit_code, 1);
      EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
      EXPECT_EQ(outcome.out, "");
    }
  };
  const Meeting meeting;
  std::vector<RankProcess> ranks = ranks_of(2, meeting.at(run_args()));
  ranks[1].environment["WORLD_SIZE"] = "3";
  all_say(ranks, "rank 1 (cpu) is of 3 ranks, rank 0 of 2");
  ranks = ranks_of(2, meeting.at(run_args()));
  ranks[1].args[1] = opt();
  all_say(ranks, "rank 1 (cpu) has another model than rank 0: 'OPTForCausalLM, 8 layers, ");
  all_say(ranks_of(2, run_args()), "nothing says where they meet");
  all_say(ranks_of(3, meeting.at(run_args())), "3 GPUs cannot share 4 attention heads");
  for (const Outcome& outcome :
       run_ranks("sparsellm-run", ranks_of(2, run_args({"--tensor-parallel", "4"})))) {
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find("--tensor-parallel 4, but 2 processes"), std::string::npos);
  }
  ranks = ranks_of(2, meeting.at(run_args({"--comm-timeout", "0.2"})));
  ranks.pop_back();
  all_say(ranks, "rank 1 has not come to ");
  ranks = ranks_of(2, run_args());
  for (RankProcess& rank : ranks) {  // where torchrun itself listens
    rank.environment.insert({{"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  }
  all_say(ranks, "give --rendezvous HOST:PORT with another port");
}

TEST(RankProcesses, NeuronsAreObservedInOne) {
  const Meeting meeting;
  const std::vector<Outcome> two =
      run_ranks("sparsellm-eval",
                ranks_of(2, meeting.at({"activation", "-m", llama(), "--text", text_file()})));
  EXPECT_EQ(two[0].exit_code, 2);
  EXPECT_EQ(two[1].exit_code, 1);
  EXPECT_NE(two[1].err.find("rank 0 (cpu): neurons are observed in one process"), std::string::npos)
      << two[1].err;
}

TEST(RankProcesses, AnEndIsTheEndOfAll) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    const Meeting meeting;
    Blow blow(1, signal, has_output);
    const auto all = run_ranks("sparsellm-run", ranks_of(2, meeting.at(endless())), blow.strike());
    expect_line(all[0], "sparsellm-run: rank 1 (cpu): connection closed");
    EXPECT_EQ(all[1].exit_code, -signal);
  }
  {
    const Meeting meeting;
    Blow blow(0, SIGKILL, has_output);
    const auto all = run_ranks("sparsellm-run", ranks_of(2, meeting.at(endless())), blow.strike());
    expect_line(all[1], "sparsellm-run: rank 0 (cpu): connection closed");
  }
  {
    const Meeting meeting;
    Blow blow(0, SIGTERM, has_output);
    const auto all = run_ranks("sparsellm-run", ranks_of(2, meeting.at(endless())), blow.strike());
    EXPECT_EQ(all[0].exit_code, 128 + SIGTERM);
    expect_line(all[1], "sparsellm-run: rank 0 (cpu): ended by SIGTERM");
  }
}

TEST(RankProcesses, AStallIsTheEndOfAll) {
  const Meeting meeting;
  const Words args = meeting.at(joined(endless(), {"--comm-timeout", "0.5"}));
  const auto all = run_ranks("sparsellm-run", ranks_of(2, args),
                             [](const std::vector<pid_t>& ranks, const fs::path& out) {
                               wait_until([&] { return has_output(ranks, out); });
                               ::kill(ranks[1], SIGSTOP);
                               wait_until([&] { return !testing::is_running(ranks[0]); });
                               ::kill(ranks[1], SIGCONT);
                             });
  for (const Outcome& outcome : all) {
    expect_line(outcome, "sparsellm-run: rank 1 (cpu): did not come within 0.5 s");
  }
}

TEST(RankProcesses, CtrlCEndsAll) {
  const Meeting meeting;
  Blow blow(0, SIGINT, [](const std::vector<pid_t>& ranks, const fs::path& out) {
    if (has_output(ranks, out)) {
      ::kill(ranks[1], SIGINT);  // a terminal sends it to all; rank 0 decides
      return true;
    }
    return false;
  });
  const auto all = run_ranks("sparsellm-run", ranks_of(2, meeting.at(endless())), blow.strike());
  for (const Outcome& outcome : all) {
    EXPECT_EQ(outcome.exit_code, 130);
    EXPECT_EQ(outcome.err, "");
  }
}

// Another rank than 0: from then on it ignores Ctrl-C.
bool has_met(pid_t process) {
  const std::string status = testing::read_file(fmt::format("/proc/{}/status", process));
  const std::string key = "SigIgn:\t";
  const size_t at = status.find(key);
  return at != std::string::npos &&
         (std::stoull(status.substr(at + key.size()), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
}

// It has nothing to compute, and looks at no connection by itself.
TEST(RankProcesses, RankZeroEndsWhileItWaitsForInput) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const Meeting meeting;
  const Words args{"-m", llama(), "--device", "cpu", "--quiet"};
  std::vector<RankProcess> ranks = ranks_of(2, meeting.at(args));
  ranks[0].before_exec = [in = ends[0]] { ::dup2(in, STDIN_FILENO); };
  Blow blow(1, SIGKILL,
            [](const std::vector<pid_t>& all, const fs::path&) { return has_met(all[1]); });
  const auto outcomes = run_ranks("sparsellm-run", ranks, blow.strike());
  expect_line(outcomes[0], "sparsellm-run: rank 1 (cpu): connection closed");
  ::close(ends[0]);
  ::close(ends[1]);
}

int64_t resident_bytes(pid_t process) {
  const std::string text = testing::read_file(fmt::format("/proc/{}/statm", process));
  const size_t space = text.find(' ');
  return space == std::string::npos ? 0 : std::stoll(text.substr(space)) * ::getpagesize();
}

// Random weights of some gigabytes, of which the first are there.
TEST(RankProcesses, AnEndWhileLoadingIsTheEndOfAll) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers have memory of their own";
  }
  constexpr int64_t kSomeBytes = int64_t{300} << 20;
  for (const int rank : {0, 1}) {
    const Meeting meeting;
    const Words args{
        "throughput", "--config",    (testing::source_dir() / "configs/llama-2-7b.json").string(),
        "--device",   "cpu",         "--batch",
        "1",          "--kv-memory", "64M",
        "--quiet"};
    Blow blow(rank, SIGKILL, [](const std::vector<pid_t>& ranks, const fs::path&) {
      return has_met(ranks[1]) && resident_bytes(ranks[1]) > kSomeBytes;
    });
    const auto all = run_ranks("sparsellm-bench", ranks_of(2, meeting.at(args)), blow.strike());
    expect_line(all[static_cast<size_t>(1 - rank)],
                fmt::format("sparsellm-bench: rank {} (cpu): connection closed", rank));
  }
}

TEST(RankProcesses, ABatchGoesOnWhereARankHasEnded) {
  const testing::BatchFolder folder(testing::many_prompts(12));
  const testing::BatchFolder whole(testing::many_prompts(12));
  const auto args = [](const testing::BatchFolder& batch, const Words& more) {
    return joined({"-m", llama(), "--device", "cpu", "-t", "2", "--quiet", "--prompts",
                   batch.prompts().string(), "--output", batch.output().string(), "--temp", "0",
                   "--parallel", "2"},
                  more);
  };
  const Meeting meeting;
  {
    Blow blow(1, SIGKILL, [&](const std::vector<pid_t>&, const fs::path&) {
      return fs::exists(folder.partial()) && fs::file_size(folder.partial()) > 0;
    });
    const auto all =
        run_ranks("sparsellm-run", ranks_of(2, meeting.at(args(folder, {}))), blow.strike());
    EXPECT_EQ(all[0].exit_code, 1);
    EXPECT_TRUE(all[0].err.starts_with("sparsellm-run: rank 1 (cpu): connection closed; "))
        << all[0].err;
    EXPECT_TRUE(all[0].err.ends_with(" of 12 lines are done, --resume goes on\n")) << all[0].err;
  }
  const Outcome alone = run("sparsellm-run", args(folder, {"--resume"}));
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_NE(alone.err.find("--tensor-parallel"), std::string::npos) << alone.err;
  const auto all = run_ranks("sparsellm-run", ranks_of(2, meeting.at(args(folder, {"--resume"}))));
  EXPECT_EQ(all[0].exit_code, 0) << all[0].err;
  EXPECT_EQ(all[1].exit_code, 0) << all[1].err;
  const Outcome threads = run("sparsellm-run", args(whole, {"--tensor-parallel", "2"}));
  EXPECT_EQ(threads.exit_code, 0) << threads.err;
  EXPECT_EQ(testing::read_file(folder.output()), testing::read_file(whole.output()));
}

}  // namespace
}  // namespace sparsellm
