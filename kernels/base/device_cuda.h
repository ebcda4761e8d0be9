#pragma once

#include <cstdint>

#include "kernels/base/choose_device.h"
#include "kernels/base/device.h"

namespace sparsellm {

// The CUDA side of device.h: device_cuda.cu, or in a CPU-only build no_cuda.cpp.
CudaFacts cuda_facts();
DeviceMemory device_memory_cuda(int index);
int64_t peak_memory_cuda(int index);
void* allocate_bytes_cuda(int index, int64_t bytes);
void free_bytes_cuda(int index, void* data) noexcept;
void copy_bytes_cuda(int index, void* destination, const void* source, int64_t bytes);

}  // namespace sparsellm
