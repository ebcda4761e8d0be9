#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace sparsellm {

// A small persistent pool for loops of a few microseconds: between loops its workers spin for a
// moment and then sleep. One thread calls parallel_for at a time; a call from inside a body runs
// in place.
class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // `threads` counts the calling thread; 0 means usable_cores(). Throws Error for more than 1024,
  // or more than the system gives.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) for ranges that together cover [0, count), on several threads, and
  // returns when all are done. Ranges start at multiples of `grain` and hold at least `grain`
  // items (the last may be shorter). The first exception thrown by a body is thrown again here,
  // after all ranges that had started are done.
  //
  // Each thread has a share of the ranges of its own, which depends on `count` and `grain` alone,
  // and takes those of others only when it has done with it. So memory that is written for the
  // first time by a call, and read by later ones of the same count and grain, lies where the thread
  // that reads it runs (first touch), also on a machine of several NUMA nodes.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    using BodyType = std::remove_reference_t<Body>;
    run(count, grain, const_cast<void*>(static_cast<const void*>(&body)),
        [](void* context, int64_t begin, int64_t end) {
          (*static_cast<BodyType*>(context))(begin, end);
        });
  }

 private:
  using Call = void (*)(void* context, int64_t begin, int64_t end);
  struct Job {
    Call call = nullptr;
    void* context = nullptr;
    int64_t count = 0;
    int64_t range = 0;  // items taken at a time
  };
  // What is left of a thread's share, in ranges.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void run(int64_t count, int64_t grain, void* context, Call call);
  void take_ranges(const Job& job, size_t thread);
  void worker_loop(size_t thread);
  void stop();
  uint64_t wait_for_job(uint64_t seen_epoch);

  Job job_;
  std::vector<Share> shares_;  // the calling thread's is the first
  // Bits 0-15: workers inside the job; bit 16: the job takes workers; bits 17 and up: its number.
  std::atomic<uint64_t> state_{0};
  std::atomic<bool> running_{false};  // a call that finds it set comes from inside a body
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

}  // namespace sparsellm
