// Ranks that are processes.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "kernels/base/comm_messages.h"
#include "kernels/base/comm_socket.h"
#include "kernels/base/comm_tcp.h"
#include "tests/kernels/base/comm_ranks.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class CommProcessTest : public ::testing::TestWithParam<Wires> {
 protected:
  TempDir folder_;
  std::string address_ =
      GetParam() == Wires::port ? free_port() : (folder_.path() / "meet").string();

  RankProcess start(int rank, int size, const RankBody& body, RankTimes times = {}) const {
    return RankProcess([&](const std::function<void()>& ready) {
      const auto comm = make_tcp_communicator(rank_options(address_, rank, size, times));
      ready();
      CpuContext context;
      body(*comm, context.exec);
    });
  }
  std::vector<RankProcess> start_all(int size, const RankBody& body, RankTimes times = {}) const {
    std::vector<RankProcess> processes;
    processes.reserve(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      processes.push_back(start(rank, size, body, times));
    }
    return processes;
  }
};
INSTANTIATE_TEST_SUITE_P(At, CommProcessTest, ::testing::Values(Wires::path, Wires::port),
                         [](const auto& value) { return to_string(value.param); });

std::vector<float> part_of(int rank) {
  std::vector<float> y(1000);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = 1.0f / static_cast<float>(1 + (i * 7 + static_cast<size_t>(rank) * 13) % 101);
  }
  return y;
}

void wait_until_ready(std::vector<RankProcess>& processes) {
  for (RankProcess& process : processes) {
    process.wait_until_ready();
  }
}

void sum_for_ever(Communicator& comm, ExecContext& ctx) {
  std::vector<float> y(100, 1.0f);
  while (true) {
    comm.all_reduce_sum(Tensor(y.data(), DType::f32, {1, 100}, Device{}), ctx);
  }
}

TEST_P(CommProcessTest, SumsHaveTheBitsOfThoseOfThreads) {
  const int size = 3;
  std::vector<float> expected;
  for (const std::string& thrown :
       run_ranks(Wires::threads, size, [&](Communicator&comm, ExecContext&ctx) {
         auto y = part_of(comm.rank());
         comm.all_reduce_sum(Tensor(y.data(), DType::f32, {10, 100}, Device{}), ctx);
         if (comm.rank() == 1) {
           expected = y;
         }
       })) {
    EXPECT_EQ(thrown, "");
  }
  for (RankProcess& process : start_all(size, [&](Communicator&comm, ExecContext&ctx) {
         auto y = part_of(comm.rank());
         comm.all_reduce_sum(Tensor(y.data(), DType::f32, {10, 100}, Device{}), ctx);
         const bool same = std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0;
         comm.agree(same ? "" : "other bits");
       })) {
    EXPECT_EQ(process.thrown(), "");
  }
}

TEST_P(CommProcessTest, AKilledProcessEndsTheOthers) {
  const int size = 3;
  for (int killed = 0; killed < size; ++killed) {
    std::vector<RankProcess> processes = start_all(size, sum_for_ever);
    wait_until_ready(processes);
    const auto begin = steady_clock::now();
    ::kill(processes[static_cast<size_t>(killed)].pid(), SIGKILL);
    for (int rank = 0; rank < size; ++rank) {
      const std::string thrown = processes[static_cast<size_t>(rank)].thrown();
      EXPECT_EQ(thrown, rank == killed
                            ? ""
                            : fmt::format("rank {} (d{}): connection closed", killed, killed));
    }
    EXPECT_LT(steady_clock::now() - begin, milliseconds(2000));
  }
}

// Who waits with patience, and who computes and looks at check() now and then, hears of it as well.
TEST_P(CommProcessTest, AKilledProcessEndsThoseThatComputeOrHavePatience) {
  RankProcess computes = start(0, 3, [](Communicator& comm, ExecContext&) {
    while (true) {
      std::this_thread::sleep_for(milliseconds(5));
      comm.check();
    }
  });
  RankProcess killed = start(1, 3, [](Communicator&, ExecContext&) { ::pause(); });
  RankProcess waits =
      start(2, 3, [](Communicator& comm, ExecContext&) { comm.agree("", Patience::while_alive); });
  for (RankProcess* process : {&computes, &killed, &waits}) {
    process->wait_until_ready();
  }
  const auto begin = steady_clock::now();
  ::kill(killed.pid(), SIGKILL);
  EXPECT_EQ(computes.thrown(), "rank 1 (d1): connection closed");
  EXPECT_EQ(waits.thrown(), "rank 1 (d1): connection closed");
  EXPECT_LT(steady_clock::now() - begin, milliseconds(2000));
}

TEST_P(CommProcessTest, AProcessKilledWhileTheOthersMeetEndsThem) {
  RankProcess killed([&](const std::function<void()>& ready) {
    const FileDescriptor socket =
        connect_to(parse_rendezvous(address_), deadline_in(milliseconds(20000)));
    EXPECT_TRUE(
        send_now(socket.get(), message(MessageKind::hello, hello_body({.rank = 1,
                                                                       .size = 3,
                                                                       .channel = Channel::data,
                                                                       .device = "d1",
                                                                       .model = "tiny"}))));
    ready();
    ::pause();
  });
  RankProcess rank0 = start(0, 3, sum_for_ever);
  killed.wait_until_ready();
  ::kill(killed.pid(), SIGKILL);
  const auto begin = steady_clock::now();
  EXPECT_EQ(rank0.thrown(), "rank 1 (d1): connection closed before all ranks had come");
  EXPECT_LT(steady_clock::now() - begin, milliseconds(4000));
}

TEST_P(CommProcessTest, AStoppedProcessIsNamedAfterTheTimeout) {
  const int size = 3;
  for (const int stopped : {0, 2}) {
    std::vector<RankProcess> processes =
        start_all(size, sum_for_ever, {.timeout = milliseconds(800)});
    wait_until_ready(processes);
    const auto begin = steady_clock::now();
    ::kill(processes[static_cast<size_t>(stopped)].pid(), SIGSTOP);
    for (int rank = 0; rank < size; ++rank) {
      if (rank != stopped) {
        EXPECT_EQ(processes[static_cast<size_t>(rank)].thrown(),
                  fmt::format("rank {} (d{}): did not come within 0.8 s", stopped, stopped));
      }
    }
    EXPECT_LT(steady_clock::now() - begin, milliseconds(4000));
  }
}

}  // namespace
}  // namespace sparsellm
