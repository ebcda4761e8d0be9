#include <cuda_runtime.h>

#include "kernels/base/device.h"
#include "kernels/base/device_cuda.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

void check(cudaError_t status, const char* what) {
  require(status == cudaSuccess, "{}: {}", what, cudaGetErrorString(status));
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // a machine without a driver is not an error
    return 0;
  }
  return count;
}

std::string no_cuda_device_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return cudaGetErrorString(status);
}

void* allocate_bytes_cuda(int index, int64_t bytes) {
  check(cudaSetDevice(index), "cannot use the CUDA device");
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cannot allocate CUDA memory");
  return data;
}

void free_bytes_cuda(int index, void* data) noexcept {
  cudaSetDevice(index);
  cudaFree(data);
}

void copy_bytes_cuda(void* destination, const void* source, int64_t bytes) {
  check(cudaMemcpy(destination, source, static_cast<size_t>(bytes), cudaMemcpyDefault),
        "cannot copy CUDA memory");
}

}  // namespace sparsellm
