#pragma once

#include <functional>
#include <memory>

#include "kernels/base/cuda_context.h"

namespace sparsellm {

// Work that was captured once and is launched many times: addresses and shapes are fixed, what lies
// at the addresses is not.
class CudaGraph {
 public:
  // Captures what `work` enqueues on the context's stream, without running it. `work` neither
  // synchronises nor allocates, and no other thread allocates on the device meanwhile. Throws what
  // it throws.
  CudaGraph(const CudaContext& context, const std::function<void()>& work);
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  void launch() const;  // on the context's stream

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
