#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace sparsellm {

// Owns page-locked memory of the host, which CUDA copies from and to without a detour. In a
// CPU-only build the constructor throws.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(int64_t bytes, std::string_view purpose);  // throws Error
  ~PinnedBuffer();  // NOLINT(performance-trivially-destructible): with CUDA it is not
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer(std::move(other)).swap(*this);
    return *this;
  }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(PinnedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sparsellm
