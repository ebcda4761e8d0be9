#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sparsellm {

// What a benchmark says about the GPU that it ran on.
struct GpuInfo {
  std::string name;
  int64_t memory_bytes = 0;  // in all
  int64_t l2_bytes = 0;
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for 9.0
  // Clocks in MHz. The current ones and the driver's version come from NVML; nothing without it.
  std::optional<int64_t> sm_clock;
  std::optional<int64_t> sm_clock_max;
  std::optional<int64_t> memory_clock;
  std::optional<int64_t> memory_clock_max;
  std::optional<std::string> driver;  // "580.65.06"
  std::string cuda_driver;            // the newest CUDA that the driver knows: "13.0"
  std::string cuda_runtime;           // "13.0"
  std::string cublas;                 // "13.1.0"
};

// Throws Error for a device that is not there, and in a CPU-only build.
GpuInfo query_gpu(int index);

}  // namespace sparsellm
