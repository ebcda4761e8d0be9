#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "kernels/base/device.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

class CudaContext;
struct ExecContext;

// Owns memory on a device, aligned to at least 256 bytes; movable, not copyable. The contents are
// undefined; on the CPU large buffers take physical memory only where they are touched.
class Buffer {
 public:
  Buffer() = default;
  // Memory that any context may use. Its owner waits for them before it is freed: free_bytes() does
  // not. Throws OutOfMemory naming `purpose`, the size and the device when there is not enough
  // memory.
  Buffer(Device device, int64_t bytes, std::string_view purpose);
  // Memory that one context alone uses, which outlives it. On CUDA the destructor waits for that
  // context, so that the memory may also be freed by an exception.
  static Buffer scratch(const ExecContext& ctx, int64_t bytes, std::string_view purpose);
  ~Buffer();

  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    std::swap(context_, other.context_);
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  const CudaContext* context_ = nullptr;  // that alone uses the memory; none: any may
};

// A tensor together with the memory it views.
struct OwnedTensor {
  Buffer buffer;
  Tensor view;
};

// Contiguous and uninitialised.
OwnedTensor allocate_tensor(Device device, DType dtype, std::initializer_list<int64_t> sizes,
                            std::string_view purpose);
// In a Buffer::scratch().
OwnedTensor allocate_scratch(const ExecContext& ctx, DType dtype,
                             std::initializer_list<int64_t> sizes, std::string_view purpose);

}  // namespace sparsellm
