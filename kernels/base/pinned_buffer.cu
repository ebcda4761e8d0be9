#include "kernels/base/cuda_state.cuh"
#include "kernels/base/pinned_buffer.h"

namespace sparsellm {

PinnedBuffer::PinnedBuffer(int64_t bytes, std::string_view purpose) : bytes_(bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (is_device_lost(status)) {
    check_cuda(status);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw OutOfMemory(fmt::format("{}: cannot get {} bytes of page-locked memory: {}", purpose,
                                  bytes, cudaGetErrorString(status)));
  }
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) {
    cudaFreeHost(data_);
  }
}

}  // namespace sparsellm
