#include "kernels/base/cuda_state.cuh"
#include "sparse/cuda_notices.h"

namespace sparsellm {
namespace {

std::string compute_capability_of(Device device) {
  int major = 0;
  int minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
  return fmt::format("{}.{}", major, minor);
}

}  // namespace

std::string unmeasured_notice(std::string_view format, Device device) {
  return fmt::format(
      "{} weights were never measured on a GPU of compute capability {}: compare with "
      "--weight-format dense",
      format, compute_capability_of(device));
}

std::string expansion_notice(std::string_view format, Device device) {
  return fmt::format(
      "no kernel for a GPU of compute capability {} takes these {} weights: each product expands "
      "them, which --weight-format dense need not",
      compute_capability_of(device), format);
}

}  // namespace sparsellm
