#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace sparsellm {

// Where kernels and calls of libraries are enqueued, to run in order. CudaContext makes queues;
// copies of one are the same queue.
struct CudaQueue {
  static constexpr int64_t kCounters = 1024;
  static constexpr int64_t kTagged = 36 * 8192;  // 2.25 MiB

  CUstream_st* stream = nullptr;
  // Scratch memory of cuBLAS and of kernels that add up partial sums: CudaContext::kWorkspaceBytes,
  // aligned to 256 bytes. What is enqueued uses it in turn.
  void* workspace = nullptr;
  // u32 [kCounters], 0 between kernels, which leave them so.
  uint32_t* counters = nullptr;
  // u64: how many kernels have used what follows, [kTagged] words by which thread blocks tell each
  // other something. Words of another kernel are there still: a word says in its upper bits whose
  // it is.
  uint64_t* tagged = nullptr;
};

}  // namespace sparsellm
