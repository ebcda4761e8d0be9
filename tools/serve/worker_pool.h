#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace sparsellm {

// Threads for work that grows with a request. What a task throws ends the program: tasks catch.
class WorkerPool {
 public:
  // At most `max_tasks` wait or are under way.
  explicit WorkerPool(int threads, size_t max_tasks = std::numeric_limits<size_t>::max());
  ~WorkerPool();  // after the tasks that have begun; others are dropped

  // From any thread. False, and nothing is done, if there are too many tasks.
  [[nodiscard]] bool post(std::function<void()> task);

 private:
  void work();

  size_t max_tasks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // that wait
  size_t under_way_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

// Brings a task to the thread that it is for.
using Post = std::function<void(std::function<void()>)>;

// Calls `work`, which throws nothing, on a worker, and then `done` where `post` brings it. `done`
// is not lost if memory is short for a moment. False, and nothing is done, if there are too many
// tasks.
[[nodiscard]] bool work_then(WorkerPool& workers, const Post& post, std::function<void()> work,
                             std::function<void()> done);

}  // namespace sparsellm
