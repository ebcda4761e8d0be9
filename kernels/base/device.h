#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sparsellm {

// Where memory lives and ops run.
struct Device {
  enum class Kind : uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // among the CUDA devices; 0 for the CPU

  bool is_cuda() const { return kind == Kind::cuda; }
  // A GPU that need not be there: what a model would take on it can be asked, nothing runs on it.
  // It is like an H100 or H200.
  bool is_planned() const { return is_cuda() && index < 0; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kPlannedGpu{Device::Kind::cuda, -1};
inline constexpr int kPlannedMultiprocessors = 132;

std::string to_string(Device device);

struct DeviceChoice {
  Device device;
  // One line: why "auto" is the CPU although there is a GPU. Empty where there is none, or no
  // driver, and for all else.
  std::string warning;
};

// "cpu", "cuda", "cuda:1", or "auto": the first CUDA device that can be used, else the CPU. Throws
// Error for anything else, and for a device that is not there or cannot be used: one whose compute
// capability is below 8.0, or for which the build has no code.
DeviceChoice choose_device(std::string_view text);

// The device alone.
Device parse_device(std::string_view text);

// Throws Error as choose_device() does for a device that is named.
void check_device(Device device);

// Number of CUDA devices, whether they can be used or not; 0 in a CPU-only build or without a
// driver that is new enough.
int cuda_device_count();

// In bytes. On the CPU all of it counts as free, since the system provides pages when they are
// first touched.
struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;
};
DeviceMemory device_memory(Device device);

// The most that this process has held of a CUDA device's memory at once.
int64_t peak_memory(Device device);

// Raw memory, aligned to 256 bytes; Buffer owns it. Contents are undefined. nullptr when there is
// not enough. `bytes` of free_bytes are those that were allocated; freed memory goes back to the
// system at once if it was large.
//
// On CUDA it comes from the device's default pool, in the order of the calling thread's own stream
// (cudaStreamPerThread), on which nothing else runs, and calls wait for that alone. cudaMalloc and
// cudaFree, and all that uses the legacy stream or waits for the device, would wait for what other
// engines have enqueued there, and break the graphs that they are capturing. So free_bytes() does
// not wait for kernels that use the memory: their owner waits first, and a Buffer::scratch() does
// so by itself. The pool keeps nothing (a release threshold of 0): memory is allocated while models
// load and tune, not in steps, and freed memory must count as free for device_memory(), from which
// the size of the KV cache follows, and for other processes.
void* allocate_bytes(Device device, int64_t bytes);
void free_bytes(Device device, void* data, int64_t bytes) noexcept;

// Copies between any two devices; complete on return. It does not wait for what is enqueued in a
// CudaContext: for that there is CudaContext::copy().
void copy_bytes(Device to, void* destination, Device from, const void* source, int64_t bytes);

}  // namespace sparsellm
