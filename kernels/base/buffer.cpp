#include "kernels/base/buffer.h"

#include "kernels/base/error.h"

namespace sparsellm {

Buffer::Buffer(Device device, int64_t bytes, std::string_view purpose)
    : bytes_(bytes), device_(device) {
  require(bytes >= 0, "{}: a buffer of {} bytes", purpose, bytes);
  if (bytes == 0) {
    return;
  }
  data_ = allocate_bytes(device, bytes);
  if (data_ == nullptr) {
    const auto gib = [](int64_t n) { return static_cast<double>(n) / (1 << 30); };
    const DeviceMemory memory = device_memory(device);
    throw OutOfMemory(
        fmt::format("out of memory on {}: {} needs {:.2f} GiB; {:.2f} GiB of {:.2f} are free",
                    to_string(device), purpose, gib(bytes), gib(memory.free), gib(memory.total)));
  }
}

OwnedTensor allocate_tensor(Device device, DType dtype, std::initializer_list<int64_t> sizes,
                            std::string_view purpose) {
  int64_t bytes = size_of(dtype);
  for (int64_t size : sizes) {
    bytes = checked_mul(bytes, size, "bytes of a tensor");
  }
  Buffer buffer(device, bytes, purpose);
  Tensor view(buffer.data(), dtype, sizes, device);
  return {.buffer = std::move(buffer), .view = view};
}

}  // namespace sparsellm
