#include "tools/serve/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>

namespace sparsellm {
namespace {

TEST(WorkerPool, RunsAllTasks) {
  std::atomic<int> done = 0;
  std::promise<void> all;
  WorkerPool pool(3);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(pool.post([&] {
      if (++done == 200) {
        all.set_value();
      }
    }));
  }
  all.get_future().wait();
  EXPECT_EQ(done, 200);
}

TEST(WorkerPool, RunsAsManyAtOnceAsItHasThreads) {
  std::promise<void> first;
  std::promise<void> second;
  WorkerPool pool(2);
  // Each waits for the other.
  std::promise<void> end;
  ASSERT_TRUE(pool.post([&] {
    first.set_value();
    second.get_future().wait();
    end.set_value();
  }));
  ASSERT_TRUE(pool.post([&] {
    first.get_future().wait();
    second.set_value();
  }));
  end.get_future().wait();
}

// Those that wait and those that are under way.
TEST(WorkerPool, TakesNoMoreThanItMay) {
  std::promise<void> begun;
  std::promise<void> end;
  std::promise<void> last;
  WorkerPool pool(1, 2);
  ASSERT_TRUE(pool.post([&] {
    begun.set_value();
    end.get_future().wait();
  }));
  begun.get_future().wait();
  ASSERT_TRUE(pool.post([&] { last.set_value(); }));
  EXPECT_FALSE(pool.post([] { FAIL() << "a task too many"; }));
  end.set_value();
  last.get_future().wait();
  // The last one counts until it is destroyed.
  std::promise<void> again;
  while (!pool.post([&] { again.set_value(); })) {
    std::this_thread::yield();
  }
  again.get_future().wait();
}

TEST(WorkerPool, AtItsEndTasksThatWaitAreDropped) {
  auto held = std::make_shared<int>(5);
  std::promise<void> begun;
  std::atomic<int> done = 0;
  {
    WorkerPool pool(1);
    ASSERT_TRUE(pool.post([&] {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ++done;
    }));
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(pool.post([held, &done] { done += 100; }));
    }
    begun.get_future().wait();
  }
  EXPECT_EQ(done, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(WorkThen, DoneComesAfterWork) {
  std::atomic<int> order = 0;
  std::promise<int> seen;
  WorkerPool pool(2);
  const Post post = [](const std::function<void()>& task) { task(); };
  ASSERT_TRUE(work_then(
      pool, post, [&] { order = 1; }, [&] { seen.set_value(order); }));
  EXPECT_EQ(seen.get_future().get(), 1);
}

TEST(WorkThen, DoneIsNotLostForWantOfMemory) {
  std::atomic<int> failures = 3;
  std::promise<void> seen;
  WorkerPool pool(1);
  const Post post = [&](const std::function<void()>& task) {
    if (failures-- > 0) {
      throw std::bad_alloc();
    }
    task();
  };
  ASSERT_TRUE(work_then(
      pool, post, [] {}, [&] { seen.set_value(); }));
  seen.get_future().wait();
  EXPECT_LT(failures, 0);
}

TEST(WorkThen, OfTooManyTasksNothingIsDone) {
  WorkerPool pool(1, 0);
  const Post post = [](const std::function<void()>& task) { task(); };
  EXPECT_FALSE(work_then(
      pool, post, [] { FAIL(); }, [] { FAIL(); }));
}

}  // namespace
}  // namespace sparsellm
