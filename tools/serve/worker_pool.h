#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sparsellm {

// Threads for work that grows with a request. What a task throws ends the program: tasks catch.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();  // after the tasks that have begun; others are dropped

  void post(std::function<void()> task);  // from any thread

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparsellm
