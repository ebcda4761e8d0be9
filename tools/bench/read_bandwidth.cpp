#include "tools/bench/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/read_bandwidth_device.h"
#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

constexpr int64_t kVector = 16;
constexpr int64_t kGrain = 1 << 15;  // words, so that a thread has something to do

// The sum proves that all words were read.
uint64_t sum_of(const uint64_t* words, int64_t count, ThreadPool& threads) {
  std::atomic<uint64_t> total{0};
  threads.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += words[i];
    }
    total += sum;
  });
  return total;
}

double read_bandwidth_cpu(int64_t bytes) {
  constexpr int64_t kRepeat = 21;
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint64_t));
  const int64_t copies = cold_copies(bytes);
  ThreadPool threads;
  const Buffer memory(Device{}, checked_mul(bytes, copies, "bytes to read"), "the bytes to read");
  auto* data = static_cast<uint64_t*>(memory.data());
  threads.parallel_for(words * copies, kGrain, [&](int64_t begin, int64_t end) {
    std::fill(data + begin, data + end, uint64_t{1});
  });
  std::vector<double> seconds;
  for (int64_t i = 0; i <= kRepeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const uint64_t sum = sum_of(data + i % copies * words, words, threads);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    require(sum == static_cast<uint64_t>(words), "a read of {} words saw {}", words, sum);
    if (i > 0) {  // the first wakes the threads
      seconds.push_back(elapsed.count());
    }
  }
  return static_cast<double>(bytes) / median(seconds);
}

}  // namespace

double measure_read_bandwidth(Device device, int64_t bytes) {
  require(bytes > 0, "the bandwidth of reading {} bytes", bytes);
  const int64_t rounded = checked_add(bytes, kVector - 1, "bytes to read") / kVector * kVector;
  if (!device.is_cuda()) {
    return read_bandwidth_cpu(rounded);
  }
  CudaContext cuda(device);
  Workspace workspace(device, 0);
  ThreadPool threads(1);
  ExecContext ctx{.device = device, .workspace = workspace, .threads = threads, .cuda = &cuda};
  return read_bandwidth_cuda(rounded, ctx);
}

}  // namespace sparsellm
