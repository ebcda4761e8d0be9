// Ranks that abort, leave, do not come or are somewhere else.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <tuple>

#include "kernels/base/comm.h"
#include "tests/kernels/base/comm_ranks.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using std::chrono::milliseconds;

class CommFailureTest : public ::testing::TestWithParam<std::tuple<Wires, int>> {
 protected:
  static Wires wires() { return std::get<0>(GetParam()); }
  static int ranks() { return std::get<1>(GetParam()); }

  static std::vector<std::string> run(const RankBody& body, RankTimes times = {}) {
    return run_ranks(wires(), ranks(), body, times);
  }
};
INSTANTIATE_TEST_SUITE_P(All, CommFailureTest,
                         ::testing::Combine(::testing::Values(Wires::threads, Wires::path,
                                                              Wires::port),
                                            ::testing::Range(2, 5)),
                         [](const auto& value) {
                           return to_string(std::get<0>(value.param)) +
                                  std::to_string(std::get<1>(value.param));
                         });

// What a rank can be waiting in.
const std::vector<RankBody>& phases() {
  static const std::vector<RankBody> all{
      [](Communicator& comm, ExecContext& ctx) {
        std::vector<float> y(5);
        comm.all_reduce_sum(Tensor(y.data(), DType::f32, {5}, Device{}), ctx);
      },
      [](Communicator& comm, ExecContext& ctx) {
        std::vector<int64_t> borders(static_cast<size_t>(comm.size()) + 1, 4);
        borders[0] = 0;
        std::vector<float> values(16);
        const Tensor part(values.data(), DType::f32, {2, comm.rank() == 0 ? 4 : 0}, Device{});
        const Tensor whole(values.data() + 8, DType::f32, {2, 4}, Device{});
        comm.all_gather(part, borders, whole, ctx);
      },
      [](Communicator& comm, ExecContext&) { comm.agree(""); },
      [](Communicator& comm, ExecContext&) { comm.agree("", Patience::while_alive); },
  };
  return all;
}

TEST_P(CommFailureTest, AnAbortReachesAllInEveryPhase) {
  for (size_t phase = 0; phase < phases().size(); ++phase) {
    for (const int culprit : {0, ranks() - 1}) {
      const std::string reason = fmt::format("rank {} (d{}): ran out", culprit, culprit);
      expect_all(run([&](Communicator& comm, ExecContext& ctx) {
                   phases()[phase](comm, ctx);
                   if (comm.rank() == culprit) {
                     comm.abort("ran\tout");
                     comm.abort("something else");
                   }
                   EXPECT_TRUE(throws_error([&] { phases()[phase](comm, ctx); }, reason));
                   EXPECT_EQ(comm.abort_reason(), reason);
                   for (const RankBody& later : phases()) {
                     EXPECT_TRUE(throws_error([&] { later(comm, ctx); }, reason));
                   }
                   comm.check();
                 }),
                 reason);
    }
  }
}

TEST_P(CommFailureTest, AnotherThreadMayAbort) {
  for (const int culprit : {0, 1}) {
    expect_all(run([&](Communicator& comm, ExecContext& ctx) {
                 if (comm.rank() == culprit) {
                   std::thread watchdog([&] {
                     std::this_thread::sleep_for(milliseconds(20));
                     comm.abort_by(1, "lost its GPU");
                   });
                   EXPECT_TRUE(throws_error(
                       [&] {
                         while (true) {
                           phases()[0](comm, ctx);
                         }
                       },
                       "lost its GPU"));
                   watchdog.join();
                 }
                 while (true) {
                   phases()[0](comm, ctx);
                 }
               }),
               "rank 1 (d1): lost its GPU");
  }
}

TEST_P(CommFailureTest, WhoDoesNotComeIsNamedAfterTheTimeout) {
  for (const int missing : {0, ranks() - 1}) {
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<int> ended{0};
    expect_all(run(
                   [&](Communicator& comm, ExecContext& ctx) {
                     comm.agree("", Patience::while_alive);
                     while (comm.rank() == missing && ended < ranks() - 1) {
                       std::this_thread::sleep_for(milliseconds(5));
                     }
                     try {
                       phases()[0](comm, ctx);
                     } catch (const Error&) {
                       ++ended;
                       throw;
                     }
                   },
                   {.timeout = milliseconds(300)}),
               fmt::format("rank {} (d{}): did not come within 0.3 s", missing, missing));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  }
}

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST_P(CommFailureTest, WaitingWithPatienceHasNoTimeoutAndTakesNoTimeOfTheCpu) {
  expect_all(run(
                 [&](Communicator& comm, ExecContext&) {
                   comm.agree("", Patience::while_alive);
                   const double before = thread_cpu_seconds();
                   if (comm.rank() == ranks() - 1) {
                     std::this_thread::sleep_for(milliseconds(400));
                   }
                   comm.agree("", Patience::while_alive);
                   EXPECT_LT(thread_cpu_seconds() - before, 0.1);
                 },
                 {.timeout = milliseconds(200)}),
             "");
}

TEST_P(CommFailureTest, WhoHasLeftIsNamed) {
  for (const int leaving : {0, ranks() - 1}) {
    const auto thrown = run([&](Communicator& comm, ExecContext& ctx) {
      phases()[0](comm, ctx);
      if (comm.rank() != leaving) {
        phases()[0](comm, ctx);
      }
    });
    for (int rank = 0; rank < ranks(); ++rank) {
      EXPECT_EQ(thrown[static_cast<size_t>(rank)],
                rank == leaving ? "" : fmt::format("rank {} (d{}): has left", leaving, leaving));
    }
  }
}

// Each throws, at the latest in the operation after it.
std::vector<std::string> run_apart(Wires wires, int ranks, const RankBody& first,
                                   const RankBody& others) {
  return run_ranks(wires, ranks, [&](Communicator& comm, ExecContext& ctx) {
    (comm.rank() == 0 ? first : others)(comm, ctx);
    phases()[0](comm, ctx);
  });
}

TEST_P(CommFailureTest, RanksAtDifferentOperationsAreNamed) {
  const auto sum_of = [](int64_t count) {
    return [count](Communicator& comm, ExecContext& ctx) {
      std::vector<float> y(static_cast<size_t>(count));
      comm.all_reduce_sum(Tensor(y.data(), DType::f32, {1, count}, Device{}), ctx);
    };
  };
  for (const std::string& text : run_apart(wires(), ranks(), phases()[2], sum_of(3))) {
    EXPECT_NE(text.find("is at all_reduce_sum of 1 rows of 12 bytes, while rank 0"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("is at gather_bytes"), std::string::npos) << text;
  }
  for (const std::string& text : run_apart(wires(), ranks(), sum_of(4), sum_of(3))) {
    EXPECT_NE(text.find("is at all_reduce_sum of 1 rows of 12 bytes, while rank 0"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("is at all_reduce_sum of 1 rows of 16 bytes"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sparsellm
