#pragma once

#include <functional>
#include <memory>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"

namespace sparsellm {

// A capture that another thread's work on the device broke, as a library does that waits for the
// whole device. The captured work itself may be in order: the stream is as it was before, and a
// later capture may succeed.
class CaptureFailed : public Error {
 public:
  using Error::Error;
};

// Work that was captured once and is launched many times: addresses and shapes are fixed, what lies
// at the addresses is not.
class CudaGraph {
 public:
  // Captures what `work` enqueues in the context's main queue, and in its side queue between fences
  // (StreamFence), without running it. `work` neither synchronises nor allocates. Throws what it
  // throws, and CaptureFailed.
  CudaGraph(const CudaContext& context, const std::function<void()>& work);
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  void launch() const;  // in the context's main queue

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
