#include "kernels/base/parallel.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/usable_cores.h"

namespace sparsellm {
namespace {

constexpr uint64_t kActiveMask = 0xffff;
constexpr uint64_t kOpen = 1u << 16;
constexpr int kEpochShift = 17;

// Long enough to bridge the gaps between the ops of a step (some 50 us), short enough that an idle
// engine costs nothing.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  require(threads >= 0 && threads <= kMaxThreads, "{} threads; use 0 (one for each core) to {}",
          threads, kMaxThreads);
  const int total = threads > 0 ? threads : std::min(usable_cores(), kMaxThreads);
  shares_ = std::vector<Share>(static_cast<size_t>(total));
  workers_.reserve(static_cast<size_t>(total) - 1);  // so that only the start of a thread can fail
  try {
    for (size_t i = 1; i < shares_.size(); ++i) {
      workers_.emplace_back([this, i] { worker_loop(i); });
    }
  } catch (const std::system_error& error) {
    const int started = size();
    stop();
    fail("cannot start {} threads: {} after {}", total, error.what(), started);
  } catch (...) {
    stop();  // no thread may outlive its object, and the destructor does not run
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  // A closed job: it wakes the waiting threads, which do not join it.
  state_ += uint64_t{1} << kEpochShift;
  state_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::run(int64_t count, int64_t grain, void* context, Call call) {
  if (count <= 0) {
    return;
  }
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || running_.load(std::memory_order_relaxed) || count <= grain) {
    call(context, 0, count);
    return;
  }
  // Four ranges per thread even out threads of different speed.
  const int64_t wanted = (count + 4 * size() - 1) / (4 * size());
  const int64_t range = (wanted + grain - 1) / grain * grain;

  // No worker is inside: the job before was closed and drained below.
  running_.store(true, std::memory_order_relaxed);
  job_ = {.call = call, .context = context, .count = count, .range = range};
  const int64_t ranges = (count + range - 1) / range;
  const int64_t threads = size();
  for (int64_t i = 0; i < threads; ++i) {
    Share& share = shares_[static_cast<size_t>(i)];
    share.next.store(ranges * i / threads, std::memory_order_relaxed);
    share.end = ranges * (i + 1) / threads;
  }
  const uint64_t epoch = (state_.load(std::memory_order_relaxed) >> kEpochShift) + 1;
  state_.store(epoch << kEpochShift | kOpen, std::memory_order_release);
  state_.notify_all();

  take_ranges(job_, 0);
  // Workers that have not come by now are not waited for.
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int i = 0; (state_.load(std::memory_order_acquire) & kActiveMask) != 0; ++i) {
    if (i < kSpins) {
      pause();
    } else {  // with more threads than cores a worker may wait for this very core
      std::this_thread::yield();
    }
  }
  running_.store(false, std::memory_order_relaxed);
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::take_ranges(const Job& job, size_t thread) {
  try {
    for (size_t i = 0; i < shares_.size(); ++i) {  // its own, then those of the threads after it
      Share& share = shares_[(thread + i) % shares_.size()];
      while (true) {
        const int64_t range = share.next.fetch_add(1, std::memory_order_relaxed);
        if (range >= share.end) {
          break;
        }
        const int64_t begin = range * job.range;
        job.call(job.context, begin, std::min(begin + job.range, job.count));
      }
    }
  } catch (...) {
    for (Share& share : shares_) {  // the others stop soon
      share.next.store(share.end, std::memory_order_relaxed);
    }
    const std::lock_guard lock(error_mutex_);
    if (!error_) {
      error_ = std::current_exception();
    }
  }
}

// Returns the state in which a job newer than `seen_epoch` was found, open or already closed.
uint64_t ThreadPool::wait_for_job(uint64_t seen_epoch) {
  for (int i = 0; i < kSpins; ++i) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (state >> kEpochShift != seen_epoch) {
      return state;
    }
    pause();
  }
  while (true) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (state >> kEpochShift != seen_epoch) {
      return state;
    }
    state_.wait(state, std::memory_order_acquire);
  }
}

void ThreadPool::worker_loop(size_t thread) {
  uint64_t seen_epoch = 0;
  while (true) {
    uint64_t state = wait_for_job(seen_epoch);
    if (stop_) {
      return;
    }
    seen_epoch = state >> kEpochShift;
    // Join only while the job is open and still the one that was seen.
    while ((state & kOpen) != 0 && state >> kEpochShift == seen_epoch) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        take_ranges(job_, thread);
        state_.fetch_sub(1, std::memory_order_acq_rel);
        break;
      }
    }
  }
}

}  // namespace sparsellm
