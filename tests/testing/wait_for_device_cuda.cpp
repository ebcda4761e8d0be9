#include <cuda_runtime.h>

#include "kernels/base/error.h"
#include "tests/testing/wait_for_device.h"

namespace sparsellm::testing {

void wait_for_device(Device device) {
  if (!device.is_cuda()) {
    return;
  }
  cudaError_t status = cudaSetDevice(device.index);
  if (status == cudaSuccess) {
    status = cudaDeviceSynchronize();
  }
  require(status == cudaSuccess, "cannot wait for {}: {}", to_string(device),
          cudaGetErrorString(status));
}

}  // namespace sparsellm::testing
