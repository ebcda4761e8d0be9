#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <thread>

#include "kernels/base/cuda_status.cuh"
#include "kernels/base/device.h"
#include "kernels/base/device_cuda.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) {
    return;
  }
  cudaGetLastError();  // told here
  const std::string text = fmt::format("{}: {}", what, cudaGetErrorString(status));
  if (is_device_lost(status)) {
    throw DeviceLost(text);
  }
  throw Error(text);
}

// The one pool of a device; what is freed goes back to the device.
cudaMemPool_t pool_of(int index) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, index), "cannot use the CUDA device's memory pool");
  return pool;
}

// Stands for all kernels of a build.
__global__ void any_kernel() {}

// A thread of its own has its own current device: that of the caller stays, and no memory is taken
// of a device that was current before.
std::string why_no_code(int index) {
  cudaError_t status = cudaSuccess;
  std::thread([&] {
    status = cudaSetDevice(index);
    if (status == cudaSuccess) {
      cudaFuncAttributes code{};
      status = cudaFuncGetAttributes(&code, reinterpret_cast<const void*>(&any_kernel));
    }
    cudaGetLastError();
  }).join();
  switch (status) {
    case cudaSuccess:
      return {};
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "this build has no code for it (see CMAKE_CUDA_ARCHITECTURES)";
    case cudaErrorUnsupportedPtxVersion:
      return "this build has no code for it but such as a newer driver would translate";
    default:
      return cudaGetErrorString(status);
  }
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

CudaFacts cuda_facts() {
  CudaFacts facts;
  facts.runtime_version = CUDART_VERSION;
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess ||
      status == cudaErrorStubLibrary) {
    cudaGetLastError();
    facts.driver_version = 0;  // the toolkit's stand-in for the driver's library is none
  }
  if (status == cudaErrorNoDevice) {
    return facts;
  }
  for (int index = 0; index < count && status == cudaSuccess; ++index) {
    cudaDeviceProp properties{};
    status = cudaGetDeviceProperties(&properties, index);
    facts.gpus.push_back(
        {.name = properties.name, .compute_capability = 10 * properties.major + properties.minor});
  }
  if (status != cudaSuccess) {
    facts.gpus.clear();
    facts.problem = cudaGetErrorString(status);
    cudaGetLastError();
  }
  facts.why_no_code = why_no_code;
  return facts;
}

DeviceMemory device_memory_cuda(int index) {
  check(cudaSetDevice(index), "cannot use the CUDA device");
  size_t free = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cannot ask for the free CUDA memory");
  return {.total = static_cast<int64_t>(total), .free = static_cast<int64_t>(free)};
}

int64_t peak_memory_cuda(int index) {
  uint64_t bytes = 0;
  check(cudaMemPoolGetAttribute(pool_of(index), cudaMemPoolAttrUsedMemHigh, &bytes),
        "cannot ask for the peak of CUDA memory");
  return static_cast<int64_t>(bytes);
}

void* allocate_bytes_cuda(int index, int64_t bytes) {
  check(cudaSetDevice(index), "cannot use the CUDA device");
  void* data = nullptr;
  const cudaError_t status = cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes),
                                                     pool_of(index), cudaStreamPerThread);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cannot allocate CUDA memory");
  check(cudaStreamSynchronize(cudaStreamPerThread), "cannot allocate CUDA memory");
  return data;
}

void free_bytes_cuda(int index, void* data) noexcept {
  // A device that is lost has lost the memory too, and a destructor has no way to report it.
  if (cudaSetDevice(index) != cudaSuccess ||
      cudaFreeAsync(data, cudaStreamPerThread) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  cudaStreamSynchronize(cudaStreamPerThread);  // where the pool gives memory back
}

void copy_bytes_cuda(int index, void* destination, const void* source, int64_t bytes) {
  constexpr char kWhat[] = "cannot copy CUDA memory";
  check(cudaSetDevice(index), kWhat);
  check(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), cudaMemcpyDefault,
                        cudaStreamPerThread),
        kWhat);
  check(cudaStreamSynchronize(cudaStreamPerThread), kWhat);
}

}  // namespace sparsellm
