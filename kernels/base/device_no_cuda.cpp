#include "kernels/base/device.h"
#include "kernels/base/device_cuda.h"
#include "kernels/base/error.h"

namespace sparsellm {

int cuda_device_count() { return 0; }

std::string no_cuda_device_reason() { return "this build has the CPU device only"; }

void* allocate_bytes_cuda(int, int64_t) { fail("{}", no_cuda_device_reason()); }

void free_bytes_cuda(int, void*) noexcept {}

void copy_bytes_cuda(void*, const void*, int64_t) { fail("{}", no_cuda_device_reason()); }

}  // namespace sparsellm
