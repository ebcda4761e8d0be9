#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct CUkern_st;  // cudaKernel_t is a pointer to it

namespace sparsellm {

class CudaContext;  // kernels/base/cuda_context.h

// What a kernel is launched with.
struct KernelNeeds {
  int64_t parameter_bytes = 0;  // of the one struct that it takes, by value
  int64_t shared_bytes = 0;     // dynamic, at most; also more than 48 KiB
};

// Code that was compiled when the program runs (kernels/base/kernel_cache.h), loaded to the device
// of a context. It outlives all launches of its kernels, also those in graphs. In a CPU-only build
// the constructor throws.
class KernelLibrary {
 public:
  // `code` is whole, as whoever keeps it checks: its length is not looked at. It is copied. Throws
  // Error for code that the device does not run.
  KernelLibrary(std::span<const std::byte> code, const CudaContext& context);
  ~KernelLibrary();
  KernelLibrary(KernelLibrary&& other) noexcept;
  KernelLibrary& operator=(KernelLibrary&& other) noexcept;

  // A kernel for launch() (kernels/base/launch.cuh), ready to be launched while a graph is
  // captured; this itself is called before. Throws Error if there is none of that name, with such a
  // parameter and no other, or if the device has less shared memory.
  CUkern_st* kernel(const std::string& name, const KernelNeeds& needs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
