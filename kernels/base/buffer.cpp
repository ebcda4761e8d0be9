#include "kernels/base/buffer.h"

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/exec.h"

namespace sparsellm {
namespace {

[[noreturn]] void fail_without_memory(Device device, int64_t bytes, std::string_view purpose) {
  const auto gib = [](int64_t n) { return static_cast<double>(n) / (1 << 30); };
  const DeviceMemory memory = device_memory(device);
  throw OutOfMemory(
      fmt::format("out of memory on {}: {} needs {:.2f} GiB; {:.2f} GiB of {:.2f} are free",
                  to_string(device), purpose, gib(bytes), gib(memory.free), gib(memory.total)));
}

int64_t bytes_of(DType dtype, std::initializer_list<int64_t> sizes) {
  int64_t bytes = size_of(dtype);
  for (int64_t size : sizes) {
    bytes = checked_mul(bytes, size, "bytes of a tensor");
  }
  return bytes;
}

OwnedTensor tensor_in(Buffer buffer, DType dtype, std::initializer_list<int64_t> sizes) {
  Tensor view(buffer.data(), dtype, sizes, buffer.device());
  return {.buffer = std::move(buffer), .view = view};
}

}  // namespace

Buffer::Buffer(Device device, int64_t bytes, std::string_view purpose)
    : bytes_(bytes), device_(device) {
  require(bytes >= 0, "{}: a buffer of {} bytes", purpose, bytes);
  if (bytes == 0) {
    return;
  }
  data_ = allocate_bytes(device, bytes);
  if (data_ == nullptr) {
    fail_without_memory(device, bytes, purpose);
  }
}

Buffer Buffer::scratch(const ExecContext& ctx, int64_t bytes, std::string_view purpose) {
  Buffer buffer(ctx.device, bytes, purpose);
  buffer.context_ = ctx.cuda;
  return buffer;
}

Buffer::~Buffer() {
  if (context_ != nullptr && data_ != nullptr) {
    context_->wait();
  }
  free_bytes(device_, data_, bytes_);
}

OwnedTensor allocate_tensor(Device device, DType dtype, std::initializer_list<int64_t> sizes,
                            std::string_view purpose) {
  return tensor_in(Buffer(device, bytes_of(dtype, sizes), purpose), dtype, sizes);
}

OwnedTensor allocate_scratch(const ExecContext& ctx, DType dtype,
                             std::initializer_list<int64_t> sizes, std::string_view purpose) {
  return tensor_in(Buffer::scratch(ctx, bytes_of(dtype, sizes), purpose), dtype, sizes);
}

}  // namespace sparsellm
