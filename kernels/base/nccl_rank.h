#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/cuda_queue.h"
#include "kernels/base/dtype.h"

namespace sparsellm {

// One rank of a communicator of NVIDIA's library, libnccl.so.2, which is loaded when it is first
// needed. In a build without it (SPARSELLM_NCCL) there is none: nccl_none.cpp.
//
// Communicators do not block: a call waits in a loop of its own and asks for the reason if
// everything has ended. Calls enqueue, and are made by one thread at a time; problem() and abort()
// by any.
class NcclRank {
 public:
  // Why the library cannot be used here, in one line; empty: it can.
  static std::string why_not();
  // What rank 0 makes and all others need.
  static std::vector<std::byte> make_id();

  // All ranks at once, each with its device; on return all are connected. `check` throws if
  // everything has ended. Throws Error.
  NcclRank(std::span<const std::byte> id, int rank, int size, int device,
           std::function<void()> check);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // In place, of f32, f16 or bf16. The order of the sum, and after how many numbers it is rounded,
  // are NCCL's.
  void all_reduce_sum(void* data, int64_t count, DType dtype, const CudaQueue& queue);

  struct Part {
    void* data = nullptr;
    int64_t bytes = 0;
    int root = 0;
  };
  // Of each part all ranks get what its root has, in place.
  void broadcast(std::span<const Part> parts, const CudaQueue& queue);

  // What has gone wrong meanwhile; empty: nothing.
  std::string problem() noexcept;
  // Ends all that is enqueued, and calls that wait. All ranks have to.
  void abort() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
