#include "kernels/base/parallel.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/usable_cores.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

struct Range {
  int64_t begin;
  int64_t end;
};

std::vector<Range> ranges_of(ThreadPool& pool, int64_t count, int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.push_back({begin, end});
  });
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

class ThreadPoolTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Range(1, 9));

TEST_P(ThreadPoolTest, RangesCoverEverythingOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (int64_t count : {1, 2, 3, 7, 8, 31, 64, 100, 1000, 12345}) {
    for (int64_t grain : {-1, 0, 1, 2, 3, 8, 24, 999, 20000}) {
      SCOPED_TRACE(fmt::format("count {}, grain {}", count, grain));
      int64_t next = 0;
      for (const Range& range : ranges_of(pool, count, grain)) {
        EXPECT_EQ(range.begin, next);
        EXPECT_LT(range.begin, range.end);
        if (grain > 0) {
          EXPECT_EQ(range.begin % grain, 0);
          EXPECT_TRUE(range.end - range.begin >= grain || range.end == count);
        }
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST_P(ThreadPoolTest, NothingToDoCallsNothing) {
  ThreadPool pool(GetParam());
  for (int64_t count : {0, -1, -1000}) {
    EXPECT_TRUE(ranges_of(pool, count, 1).empty());
  }
}

TEST_P(ThreadPoolTest, WhatBodiesWroteIsSeenAfterwards) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> numbers(100000);
  for (int64_t round = 1; round <= 20; ++round) {
    pool.parallel_for(std::ssize(numbers), 100, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        numbers[static_cast<size_t>(i)] += i * round;
      }
    });
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(numbers[i], static_cast<int64_t>(i) * 210);
  }
}

TEST_P(ThreadPoolTest, ManyTinyLoopsInARow) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> counts(16, 0);
  constexpr int64_t kLoops = 20000;
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    pool.parallel_for(16, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ++counts[static_cast<size_t>(i)];
      }
    });
  }
  EXPECT_EQ(counts, std::vector<int64_t>(16, kLoops));
}

// Workers that have gone to sleep between loops.
TEST_P(ThreadPoolTest, LoopsWithPausesBetween) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 20; ++loop) {
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Workers sleep soon after the last loop, and before the first.
TEST_P(ThreadPoolTest, IdleThreadsTakeNoTime) {
  ThreadPool pool(GetParam());
  for (int loops = 0; loops < 2; ++loops) {
    if (loops > 0) {
      pool.parallel_for(100, 1, [](int64_t, int64_t) {});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // they go to sleep
    const std::clock_t start = std::clock();                     // of the process
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC * 30 / 1000);
  }
}

TEST_P(ThreadPoolTest, AnExceptionOfABodyComesOut) {
  ThreadPool pool(GetParam());
  for (int64_t bad : {0, 50, 99}) {
    std::atomic<int64_t> inside = 0;
    EXPECT_TRUE(throws_error(
        [&] {
          pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) {
            ++inside;
            const bool is_here = begin <= bad && bad < end;
            --inside;
            require(!is_here, "item {} is bad", bad);
          });
        },
        fmt::format("item {} is bad", bad)));
    EXPECT_EQ(inside, 0);
    // The pool is as good as new.
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 100);
  }
}

TEST_P(ThreadPoolTest, OneOfManyExceptionsComesOut) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 200; ++loop) {
    EXPECT_TRUE(throws_error(
        [&] { pool.parallel_for(100, 1, [](int64_t begin, int64_t) { fail("from {}", begin); }); },
        "from "));
  }
  EXPECT_THROW(pool.parallel_for(10, 1, [](int64_t, int64_t) { throw 7; }), int);
}

TEST_P(ThreadPoolTest, NestedLoopsRunInPlace) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> visits(30 * 40);
  pool.parallel_for(30, 1, [&](int64_t begin, int64_t end) {
    const std::thread::id outer = std::this_thread::get_id();
    for (int64_t i = begin; i < end; ++i) {
      pool.parallel_for(40, 1, [&](int64_t inner_begin, int64_t inner_end) {
        EXPECT_EQ(std::this_thread::get_id(), outer);
        for (int64_t j = inner_begin; j < inner_end; ++j) {
          ++visits[static_cast<size_t>(i * 40 + j)];
        }
      });
    }
  });
  for (const std::atomic<int>& count : visits) {
    EXPECT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, ANestedExceptionComesOut) {
  ThreadPool pool(GetParam());
  EXPECT_TRUE(throws_error(
      [&] {
        pool.parallel_for(10, 1, [&](int64_t, int64_t) {
          pool.parallel_for(10, 1, [](int64_t, int64_t) { fail("inner"); });
        });
      },
      "inner"));
}

TEST_P(ThreadPoolTest, UnevenItems) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum = 0;
  pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      sum += i;
    }
  });
  EXPECT_EQ(sum, 64 * 63 / 2);
}

TEST_P(ThreadPoolTest, PoolsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(GetParam());
    if (i % 2 == 0) {
      EXPECT_EQ(ranges_of(pool, 10, 10).size(), 1u);
      std::atomic<int64_t> sum = 0;
      pool.parallel_for(10, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      EXPECT_EQ(sum, 10);
    }
  }
}

TEST_P(ThreadPoolTest, TakesConstAndMoveOnlyBodies) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum = 0;
  const auto body = [&](int64_t begin, int64_t end) { sum += end - begin; };
  pool.parallel_for(10, 1, body);
  pool.parallel_for(10, 1, [&sum, one = std::make_unique<int64_t>(1)](int64_t begin, int64_t end) {
    sum += (end - begin) * *one;
  });
  EXPECT_EQ(sum, 20);
}

// All threads are in the call before any of them goes on; each then has begun with its own share.
TEST_P(ThreadPoolTest, ThreadsBeginWithTheSameShareInEachCall) {
  ThreadPool pool(GetParam());
  const auto threads = static_cast<size_t>(pool.size());
  std::map<std::thread::id, int64_t> firsts[2];
  for (std::map<std::thread::id, int64_t>& first : firsts) {
    std::mutex mutex;
    std::atomic<size_t> inside = 0;
    pool.parallel_for(40 * pool.size(), 1, [&](int64_t begin, int64_t) {
      {
        const std::lock_guard lock(mutex);
        inside += first.try_emplace(std::this_thread::get_id(), begin).second ? 1 : 0;
      }
      while (inside < threads) {
        std::this_thread::yield();
      }
    });
    EXPECT_EQ(first.size(), threads);
    std::set<int64_t> begins;
    for (const auto& [thread, begin] : first) {
      begins.insert(begin);
    }
    EXPECT_EQ(begins.size(), threads);
    EXPECT_EQ(*begins.begin(), 0);
    EXPECT_EQ(*begins.rbegin(), 40 * (pool.size() - 1));
  }
  EXPECT_EQ(firsts[0], firsts[1]);
}

TEST(ThreadPool, ZeroMeansOnePerUsableCore) {
  EXPECT_EQ(ThreadPool(0).size(), usable_cores());
  EXPECT_EQ(ThreadPool().size(), usable_cores());
}

TEST(ThreadPool, RefusesImpossibleCounts) {
  EXPECT_TRUE(throws_error([] { ThreadPool(-1); }, "-1 threads"));
  EXPECT_TRUE(
      throws_error([] { ThreadPool(1025); }, "1025 threads; use 0 (one for each core) to 1024"));
}

// While it lives, the process has addresses for a few more threads.
class RoomForThreads {
 public:
  explicit RoomForThreads(rlim_t threads) {
    constexpr rlim_t kStackBytes = rlim_t{256} << 20;
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_attr_init(&attributes), 0);
    EXPECT_EQ(pthread_getattr_default_np(&old_attributes_), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, kStackBytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &old_limit_), 0);
    const auto page_bytes = static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
    const rlimit limit{.rlim_cur = pages * page_bytes + threads * kStackBytes + kStackBytes / 2,
                       .rlim_max = old_limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~RoomForThreads() {
    ::setrlimit(RLIMIT_AS, &old_limit_);
    pthread_setattr_default_np(&old_attributes_);
  }
  RoomForThreads(const RoomForThreads&) = delete;
  RoomForThreads& operator=(const RoomForThreads&) = delete;

 private:
  pthread_attr_t old_attributes_{};
  rlimit old_limit_{};
};

// Those that have started end, or the process would.
TEST(ThreadPool, NamesTheThreadsThatTheSystemDoesNotGive) {
  if (kSanitized) {
    GTEST_SKIP() << "sanitizers need memory for a thread's stack";
  }
  {
    const RoomForThreads room(2);
    for (int threads : {4, 1024}) {
      EXPECT_TRUE(throws_error(
          [&] { ThreadPool pool(threads); },
          fmt::format("cannot start {} threads: Resource temporarily unavailable after 3",
                      threads)));
    }
    EXPECT_EQ(ThreadPool(3).size(), 3);
  }
  EXPECT_EQ(ThreadPool(4).size(), 4);
}

TEST(ThreadPool, TwoPoolsAtATime) {
  std::atomic<int64_t> sum = 0;
  const auto run = [&sum] {
    ThreadPool pool(3);
    for (int i = 0; i < 500; ++i) {
      pool.parallel_for(10, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    }
  };
  std::thread other(run);
  run();
  other.join();
  EXPECT_EQ(sum, 2 * 500 * 10);
}

}  // namespace
}  // namespace sparsellm
