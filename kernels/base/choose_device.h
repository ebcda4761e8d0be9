#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device.h"

namespace sparsellm {

// The oldest GPUs that the kernels are for: 10 * major + minor of the compute capability.
inline constexpr int kMinComputeCapability = 80;

inline constexpr std::string_view kCpuOnlyBuild = "this build has the CPU device only";

struct GpuFacts {
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
};

// What CUDA says of a machine, without using its GPUs.
struct CudaFacts {
  int driver_version = 0;   // the newest CUDA that the driver knows, 13000 for 13.0; 0: no driver
  int runtime_version = 0;  // of this build, likewise; 0: it has the CPU device only
  std::string problem;      // why CUDA does not list the GPUs; empty if it does, or there are none
  std::vector<GpuFacts> gpus;
  // Why this build's code does not run on the GPU with this index, in a phrase; empty if it does.
  // Asking takes some of the GPU's memory, so only GPUs that may be chosen are asked about.
  std::function<std::string(int)> why_no_code = [](int) { return std::string(); };
};

// The device that a text of parse_device() stands for on such a machine. Throws Error as
// parse_device() does.
DeviceChoice choose_device(std::string_view text, const CudaFacts& facts);

}  // namespace sparsellm
