#include "tools/serve/worker_pool.h"

#include <chrono>
#include <new>
#include <utility>

namespace sparsellm {
namespace {

constexpr std::chrono::milliseconds kShortOfMemory{10};

void post_at_last(const Post& post, const std::function<void()>& task) {
  for (;;) {
    try {
      return post(task);
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kShortOfMemory);
    }
  }
}

}  // namespace

WorkerPool::WorkerPool(int threads, size_t max_tasks) : max_tasks_(max_tasks) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
  }
}

WorkerPool::~WorkerPool() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    dropped.swap(tasks_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool WorkerPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.size() + under_way_ >= max_tasks_) {
      return false;
    }
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

void WorkerPool::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (ends_) {
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++under_way_;
    }
    task();
    task = {};  // what it holds, too, before it counts as done
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
}

bool work_then(WorkerPool& workers, const Post& post, std::function<void()> work,
               std::function<void()> done) {
  return workers.post([post, work = std::move(work), done = std::move(done)] {
    work();
    post_at_last(post, done);
  });
}

}  // namespace sparsellm
