#include "kernels/base/workspace.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

int64_t Workspace::tensor_bytes(DType dtype, std::initializer_list<int64_t> sizes) {
  int64_t bytes = size_of(dtype);
  for (int64_t size : sizes) {
    require(size >= 0, "a workspace tensor has a negative size {}", size);
    bytes = checked_mul(bytes, size, "bytes of a workspace tensor");
  }
  return (checked_add(bytes, kAlignment - 1, "bytes of a workspace tensor")) / kAlignment *
         kAlignment;
}

Tensor Workspace::Scope::tensor(DType dtype, std::initializer_list<int64_t> sizes) {
  Workspace& arena = workspace_;
  const int64_t bytes = tensor_bytes(dtype, sizes);
  require(bytes <= arena.bytes() - arena.used_,
          "the workspace of {} bytes is too small: {} in use, {} requested", arena.bytes(),
          arena.used_, bytes);
  void* data = static_cast<std::byte*>(arena.buffer_.data()) + arena.used_;
  arena.used_ += bytes;
  arena.peak_ = std::max(arena.peak_, arena.used_);
  return Tensor(data, dtype, sizes, arena.buffer_.device());
}

Tensor Workspace::Scope::like(const Tensor& x) { return tensor(x.dtype(), {x.size(0), x.size(1)}); }

}  // namespace sparsellm
