#pragma once

#include <cstdint>
#include <string>

namespace sparsellm {

// The CUDA side of device.h: device_cuda.cu, or in a CPU-only build device_no_cuda.cpp.
std::string no_cuda_device_reason();  // why cuda_device_count() is 0
void* allocate_bytes_cuda(int index, int64_t bytes);
void free_bytes_cuda(int index, void* data) noexcept;
void copy_bytes_cuda(void* destination, const void* source, int64_t bytes);

}  // namespace sparsellm
