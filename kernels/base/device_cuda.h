#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/device.h"

namespace sparsellm {

// The CUDA side of device.h: device_cuda.cu, or in a CPU-only build no_cuda.cpp.
std::string no_cuda_device_reason();  // why cuda_device_count() is 0
DeviceMemory device_memory_cuda(int index);
int64_t peak_memory_cuda(int index);
void* allocate_bytes_cuda(int index, int64_t bytes);
void free_bytes_cuda(int index, void* data) noexcept;
void copy_bytes_cuda(int index, void* destination, const void* source, int64_t bytes);

}  // namespace sparsellm
