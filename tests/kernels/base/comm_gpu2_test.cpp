// Ranks on GPUs of their own, in threads of this process: own kernels and NCCL. A program to take
// along: comm_gpu2_test [--one-gpu] [--stress=SECONDS] [--gtest_filter=...].

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "kernels/add.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "tests/kernels/base/comm_gpu2_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kCalls = 10000;

class CommThreadsGpu2 : public CommGpu2 {};

TEST_F(CommThreadsGpu2, SumsHaveTheBitsOfTheOrderOfTheRanks) {
  for (const int ranks : rank_counts()) {
    run(ranks, [](GpuRank& rank) { check_sums(rank, true); });
  }
}

TEST_F(CommThreadsGpu2, ColumnsAreGathered) {
  // As packets, and as tiles.
  for (const int64_t tiles_from : {int64_t{0}, CommLimits::kNever}) {
    for (const int ranks : rank_counts()) {
      run(ranks, check_gathers, {.limits = CommLimits{.tiles_from = tiles_from}});
    }
  }
}

TEST_F(CommThreadsGpu2, Broadcasts) {
  for (const int64_t tiles_from : {int64_t{0}, CommLimits::kNever}) {
    for (const int ranks : rank_counts()) {
      run(ranks, check_broadcasts, {.limits = CommLimits{.tiles_from = tiles_from}});
    }
  }
}

// More than the calls after which packets' numbers begin anew.
TEST_F(CommThreadsGpu2, RandomCalls) {
  for (const int ranks : rank_counts()) {
    run(ranks, [](GpuRank& rank) {
      check_random_calls(rank, 1, [](int64_t number) { return number < kCalls; });
    });
  }
}

TEST_F(CommThreadsGpu2, GraphsOfOddNumbersOfCalls) {
  for (const int ranks : rank_counts()) {
    run(ranks, check_graphs);
  }
}

TEST_F(CommThreadsGpu2, DeferredSums) {
  for (const int ranks : rank_counts()) {
    run(ranks, check_deferred_sums);
  }
}

// Kernels that begin while the one before still runs: what a sum adds up is written by the kernel
// before it, and read by the one after it.
TEST_F(CommThreadsGpu2, ChainsOfOverlappingKernels) {
  constexpr int kLinks = 14;
  constexpr int kReplays = 200;
  constexpr int64_t kCount = 7168;
  const auto body = [&](GpuRank& rank) {
    const auto ranks = static_cast<float>(rank.comm->size());
    const RankTensor x = rank.tensor(DType::f16, {1, kCount});
    const RankTensor y = rank.tensor(DType::f32, {1, kCount}, Layout::contiguous, 1 << 20);
    std::vector<std::byte> ones;
    std::vector<float> expected(kCount, 0.0f);
    float sum_of_ranks = 0.0f;
    for (int r = 0; r < rank.comm->size(); ++r) {
      sum_of_ranks += static_cast<float>(r + 1);
    }
    for (int64_t i = 0; i < kCount; ++i) {
      const Half value = to_half(static_cast<float>(rank.comm->rank() + 1));
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      ones.insert(ones.end(), bytes, bytes + sizeof(value));
    }
    for (int link = 0; link < kLinks; ++link) {
      for (float& value : expected) {
        value = value * ranks + sum_of_ranks;
      }
    }
    rank.set_bytes(x.view(), ones);
    for (const CommWay way : kCommWays) {
      if (way == CommWay::nccl || !rank.comm->has(way)) {
        continue;
      }
      rank.comm->use_only(way);
      const auto links = [&] {
        for (int link = 0; link < kLinks; ++link) {
          add(x.view(), y.view(), rank.exec);
          rank.comm->all_reduce_sum(y.view(), rank.exec);
        }
      };
      const std::vector<std::byte> zeros(kCount * sizeof(float));
      rank.set_bytes(y.view(), zeros);
      links();
      rank.cuda.synchronize();
      rank.comm->agree({});
      const CudaGraph graph(rank.cuda, links);
      rank.comm->agree({});
      for (int replay = 0; replay < kReplays; ++replay) {
        rank.set_bytes(y.view(), zeros);
        graph.launch();
        const std::vector<std::byte> found = rank.bytes_of(y.view());
        const bool same = std::memcmp(found.data(), expected.data(), found.size()) == 0;
        require(same, "{}, replay {}: other sums", name_of(way), replay);
      }
      rank.comm->agree({});
    }
  };
  for (const int ranks : rank_counts()) {
    if (ranks <= 3) {  // then the sums are exact in f32
      run(ranks, body);
    }
  }
}

TEST_F(CommThreadsGpu2, NcclBesideOwnKernels) {
  run(2,
      [](GpuRank& rank) {
        if (!rank.comm->why_no_nccl().empty()) {
          return;  // told by the next test
        }
        require(rank.comm->has(CommWay::nccl), "there is no NCCL, and no reason");
        require(rank.comm->way_of(1 << 20) == CommWay::nccl, "the limit is not kept");
        require(rank.comm->way_of((1 << 20) - 1) != CommWay::nccl, "the limit is not kept");
        check_sums(rank, true);
        check_graphs(rank);
      },
      {.nccl = CudaCommOptions::Nccl::also, .limits = CommLimits{.nccl_from = 1 << 20}});
}

TEST_F(CommThreadsGpu2, NcclAlone) {
  if (comm_test_flags().one_gpu) {
    GTEST_SKIP() << "NCCL takes one rank on a GPU";
  }
  bool is_there = true;
  for (const int ranks : rank_counts()) {
    const auto thrown = run_gpu_ranks(ranks,
                                      [](GpuRank& rank) {
                                        check_sums(rank, false);
                                        check_gathers(rank);
                                        check_broadcasts(rank);
                                      },
                                      {.own_kernels = false});
    for (const std::string& one : thrown) {
      const bool no_nccl = one.find("NCCL cannot be loaded") != std::string::npos ||
                           one.find("this build has no NCCL") != std::string::npos;
      is_there = is_there && !no_nccl;
      EXPECT_TRUE(one.empty() || no_nccl) << one;
    }
  }
  if (!is_there) {
    GTEST_SKIP() << "there is no NCCL";
  }
}

// Rank 0 waits on its device for rank 1, which aborts.
TEST_F(CommThreadsGpu2, AnAbortEndsWhoWaits) {
  for (const CommWay way : kCommWays) {
    const bool nccl = way == CommWay::nccl;
    if (nccl && comm_test_flags().one_gpu) {
      continue;
    }
    std::atomic<steady_clock::rep> aborted{0};
    steady_clock::time_point ended;
    bool tested = true;
    const auto thrown = run_gpu_ranks(
        2,
        [&](GpuRank& rank) {
          const RankTensor y = rank.tensor(DType::f16, {1, 100000});
          if (!rank.comm->has(way)) {
            tested = false;
            return;
          }
          rank.comm->use_only(way);
          for (int i = 0; i < 3; ++i) {
            rank.comm->all_reduce_sum(y.view(), rank.exec);
          }
          rank.cuda.synchronize();
          rank.comm->agree({});
          if (rank.comm->rank() == 1) {
            std::this_thread::sleep_for(milliseconds(200));
            aborted = steady_clock::now().time_since_epoch().count();
            fail("a test");
          }
          for (int i = 0; i < 100; ++i) {
            rank.comm->all_reduce_sum(y.view(), rank.exec);
          }
          rank.cuda.synchronize();
          ended = steady_clock::now();
          rank.comm->check();
          fail("there was no reason");
        },
        {.nccl = nccl ? CudaCommOptions::Nccl::also : CudaCommOptions::Nccl::if_needed});
    if (!tested) {
      continue;
    }
    const std::string device = comm_test_flags().one_gpu ? "cuda:0" : "cuda:1";
    EXPECT_EQ(thrown[0], "rank 1 (" + device + "): a test") << name_of(way);
    EXPECT_EQ(thrown[1], "a test") << name_of(way);
    const auto took = ended.time_since_epoch().count() - aborted.load();
    EXPECT_LT(std::chrono::duration<double>(steady_clock::duration(took)).count(), 1.0)
        << name_of(way);
  }
}

// The same of a deferred sum, whose part of rank 1 never comes.
TEST_F(CommThreadsGpu2, AnAbortEndsADeferredSum) {
  const auto thrown = run_gpu_ranks(2, [&](GpuRank& rank) {
    const RankTensor y = rank.tensor(DType::f16, {1, 1 << 20});
    if (rank.comm->rank() == 1) {
      std::this_thread::sleep_for(milliseconds(200));
      fail("a test");
    }
    const Communicator::Deferral deferral(rank.comm.get());
    rank.comm->all_reduce_sum(y.view(), rank.exec);
    rank.comm->finish_sum(y.view(), rank.exec);
    rank.cuda.synchronize();
    rank.comm->check();
    fail("there was no reason");
  });
  EXPECT_EQ(thrown[0], std::string("rank 1 (") + (comm_test_flags().one_gpu ? "cuda:0" : "cuda:1") +
                           "): a test");
  EXPECT_EQ(thrown[1], "a test");
}

// After an abort, and after an end in order, new ones on the same GPUs are as good as the first.
TEST_F(CommThreadsGpu2, OneAfterTheOther) {
  for (int time = 0; time < 3; ++time) {
    const auto thrown = run_gpu_ranks(2, [&](GpuRank& rank) {
      check_random_calls(rank, static_cast<uint64_t>(time), [](int64_t n) { return n < 256; });
      require(time == 0 || rank.comm->rank() == 0, "a test");
    });
    EXPECT_EQ(thrown[1], time == 0 ? "" : "a test");
  }
}

TEST_F(CommThreadsGpu2, Stress) {
  const int seconds = comm_test_flags().stress_seconds;
  if (seconds == 0) {
    GTEST_SKIP() << "started without --stress=SECONDS";
  }
  const auto seed = static_cast<uint64_t>(steady_clock::now().time_since_epoch().count());
  RecordProperty("seed", std::to_string(seed));
  for (const int ranks : {rank_counts().back()}) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(seconds);
    run(ranks, [&](GpuRank& rank) {
      check_random_calls(rank, seed, [&](int64_t number) {
        std::vector<std::byte> on{std::byte{steady_clock::now() < deadline}};
        rank.comm->broadcast_bytes(on, 0);
        if (on.front() == std::byte{0} && rank.comm->rank() == 0) {
          std::printf("%ld random calls of %d ranks, seed %lu\n", static_cast<long>(number), ranks,
                      static_cast<unsigned long>(seed));
        }
        return on.front() != std::byte{0};
      });
    });
  }
}

}  // namespace
}  // namespace sparsellm
