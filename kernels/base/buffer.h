#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "kernels/base/device.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Owns memory on a device, aligned to at least 256 bytes; movable, not copyable. The contents are
// undefined; on the CPU large buffers take physical memory only where they are touched.
class Buffer {
 public:
  Buffer() = default;
  // Throws OutOfMemory naming `purpose`, the size and the device when there is not enough memory.
  Buffer(Device device, int64_t bytes, std::string_view purpose);
  ~Buffer() { free_bytes(device_, data_, bytes_); }

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
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
};

// A tensor together with the memory it views.
struct OwnedTensor {
  Buffer buffer;
  Tensor view;
};

// Contiguous and uninitialised.
OwnedTensor allocate_tensor(Device device, DType dtype, std::initializer_list<int64_t> sizes,
                            std::string_view purpose);

}  // namespace sparsellm
