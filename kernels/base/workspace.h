#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/base/buffer.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// An arena of fixed size and address for the intermediate tensors of a step (captured CUDA graphs
// need addresses that never change). Scopes nest like the calls that open them:
//   auto scratch = ctx.workspace.scope();
//   Tensor h = scratch.like(x);
// Tensors of a scope are contiguous, aligned to 256 bytes, uninitialised and valid until the scope
// ends. Not thread-safe.
class Workspace {
 public:
  class Scope {
   public:
    ~Scope() { workspace_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // Throws Error when the arena is too small.
    Tensor tensor(DType dtype, std::initializer_list<int64_t> sizes);
    Tensor like(const Tensor& x);  // rank 2: the same dtype and shape, contiguous

   private:
    friend class Workspace;
    explicit Scope(Workspace& workspace) : workspace_(workspace), mark_(workspace.used_) {}

    Workspace& workspace_;
    int64_t mark_;
  };

  Workspace(Device device, int64_t bytes)
      : buffer_(device, bytes, "the workspace (a smaller number of tokens per step takes less)") {}

  Scope scope() { return Scope(*this); }
  int64_t bytes() const { return buffer_.bytes(); }
  int64_t peak_bytes() const { return peak_; }

  // What one tensor takes in an arena, for modules that sum up their needs.
  static int64_t tensor_bytes(DType dtype, std::initializer_list<int64_t> sizes);

 private:
  Buffer buffer_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

}  // namespace sparsellm
