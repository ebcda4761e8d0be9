// Ranks with their shares of a model, as threads, as threads that talk through sockets, and as
// processes: the same logits, bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/rank_group.h"
#include "engine/resolve_options.h"
#include "kernels/base/comm_tcp.h"
#include "kernels/base/comm_threads.h"
#include "kernels/base/error.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "tests/kernels/base/comm_ranks.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Comms = std::vector<std::unique_ptr<Communicator>>;

LoadRank load_shares(const std::string& format, ActivationSparsityRequest sparsity) {
  return [=](Communicator& comm) {
    EngineOptions options;
    options.tensor_parallel.degree = comm.size();
    options.threads = comm.size();
    options.context_size = 48;
    options.max_requests = 2;
    options.step_tokens = 16;
    options.kv_tokens = 96;
    options.activation_sparsity = sparsity;
    const std::filesystem::path directory = data("tiny/llama_six_heads");
    const ModelConfig config = config_to_run(read_model_config(directory), options);
    const EngineOptions own = options_of_rank(options, comm);
    const Checkpoint checkpoint(directory);
    CheckpointLoader weights(checkpoint, own.device, own.dtype, own.progress,
                             {.format = format, .threads = own.threads},
                             {.rank = comm.rank(), .degree = comm.size()});
    return std::make_unique<Rank>(own, config, weights, &comm);
  };
}

// Rows of one request, whose pages are 3 and 1; their logits are looked at.
RankStep step_of(int32_t first, int32_t rows) {
  RankStep step;
  step.choices = 1;
  StepTables& tables = step.prefill.tables;
  for (int32_t i = 0; i < rows; ++i) {
    tables.positions.push_back(first + i);
    tables.token_ids.push_back(3 + (first + i) * 37 % 300);
    tables.logit_rows.push_back(i);
    step.prefill.host_rows.push_back(i);
  }
  tables.query_start = {0, rows};
  tables.kv_length = {first + rows};
  tables.page_table = {3, 1};
  tables.page_stride = 2;
  tables.generated = rows == 1 ? 1 : 0;
  step.prefill.samples.resize(static_cast<size_t>(rows));
  return step;
}

std::vector<uint32_t> compute(RankGroup& group, const RankStep& step) {
  std::vector<uint32_t> bits;
  const int number = group.launch(step);
  while (const std::optional<Tensor> logits = group.next_logits()) {
    for (int64_t row = 0; row < logits->size(0); ++row) {
      for (int64_t id = 0; id < logits->size(1); ++id) {
        bits.push_back(std::bit_cast<uint32_t>(logits->row<float>(row)[id]));
      }
    }
  }
  group.finish(number);
  return bits;
}

// A prompt and what follows it.
std::vector<uint32_t> logits_of(RankGroup& group) {
  std::vector<uint32_t> bits = compute(group, step_of(0, 11));
  for (int32_t position = 11; position < 20; ++position) {
    const std::vector<uint32_t> more = compute(group, step_of(position, 1));
    bits.insert(bits.end(), more.begin(), more.end());
  }
  EXPECT_EQ(bits.size(), 20u * 311u);
  return bits;
}

std::vector<uint32_t> on_threads(int degree, const LoadRank& load) {
  RankGroup group(make_thread_communicators(degree), load);
  return logits_of(group);
}

Comms first_rank(const std::string& address, int degree, RankTimes times = {}) {
  Comms comms;
  comms.push_back(make_tcp_communicator(rank_options(address, 0, degree, times)));
  return comms;
}

void work(const std::string& address, int rank, int degree, const LoadRank& load) {
  const auto comm = make_tcp_communicator(rank_options(address, rank, degree));
  run_rank_worker(load, *comm);
}

std::vector<RankProcess> start_processes(const std::string& address, int degree,
                                         const LoadRank& load) {
  std::vector<RankProcess> processes;
  for (int rank = 1; rank < degree; ++rank) {
    processes.emplace_back(
        [&, rank](const std::function<void()>&) { work(address, rank, degree, load); });
  }
  return processes;
}

class RankProcesses : public ::testing::TestWithParam<Wires> {
 protected:
  TempDir folder_;
  std::string address_ =
      GetParam() == Wires::port ? free_port() : (folder_.path() / "meet").string();
};
INSTANTIATE_TEST_SUITE_P(At, RankProcesses, ::testing::Values(Wires::path, Wires::port),
                         [](const auto& value) { return to_string(value.param); });

struct Case {
  int degree;
  std::string format;
  ActivationSparsityRequest sparsity = {};
};

TEST_P(RankProcesses, HaveTheBitsOfThreads) {
  const ActivationSparsityRequest predict{
      .mode = ActivationSparsity::Mode::predict,
      .alpha = ActivationSparsityRequest::Alpha{.value = 1.05f}};
  for (const Case& c :
       {Case{3, "dense"}, Case{3, "tca_bme"}, Case{6, "tiled_csl"}, Case{3, "dense", predict}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", c.degree, c.format));
    const LoadRank load = load_shares(c.format, c.sparsity);
    std::vector<uint32_t> of_processes;
    std::vector<RankProcess> processes = start_processes(address_, c.degree, load);
    {
      RankGroup group(first_rank(address_, c.degree), load);
      of_processes = logits_of(group);
    }
    for (RankProcess& process : processes) {
      EXPECT_EQ(process.thrown(), "");
    }
    EXPECT_TRUE(on_threads(c.degree, load) == of_processes);
  }
}

TEST_P(RankProcesses, HaveTheBitsOfThreadsWithSockets) {
  const int degree = 3;
  const LoadRank load = load_shares("tca_bme", {});
  std::vector<std::jthread> workers;
  for (int rank = 1; rank < degree; ++rank) {
    workers.emplace_back([&, rank] { work(address_, rank, degree, load); });
  }
  std::vector<uint32_t> of_sockets;
  {
    RankGroup group(first_rank(address_, degree), load);
    of_sockets = logits_of(group);
  }
  workers.clear();
  EXPECT_TRUE(on_threads(degree, load) == of_sockets);
}

// Whether while a step is computed or between two.
TEST_P(RankProcesses, AKilledOneEndsAll) {
  const int degree = 3;
  const LoadRank load = load_shares("dense", {});
  std::vector<RankProcess> processes = start_processes(address_, degree, load);
  RankGroup group(first_rank(address_, degree), load);
  compute(group, step_of(0, 11));
  const auto start = std::chrono::steady_clock::now();
  ::kill(processes[1].pid(), SIGKILL);
  const std::string line = "rank 2 (d2): connection closed";
  for (int again = 0; again < 2; ++again) {
    try {
      for (;;) {
        compute(group, step_of(11, 1));
      }
    } catch (const DeviceLost& lost) {
      EXPECT_EQ(lost.what(), line);
    }
  }
  EXPECT_EQ(processes[0].thrown(), "");  // it has left, too
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace sparsellm
