#include <string_view>

#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_state.cuh"
#include "kernels/base/kernel_library.h"

namespace sparsellm {
namespace {

// Whether the kernel takes one parameter of that size.
bool takes_one_parameter(const void* kernel, int64_t bytes) {
  size_t offset = 0;
  size_t size = 0;
  const cudaError_t first = cudaFuncGetParamInfo(kernel, 0, &offset, &size);
  if (first != cudaSuccess && first != cudaErrorInvalidValue) {
    check_cuda(first);
  }
  const bool fits = first == cudaSuccess && static_cast<int64_t>(size) == bytes;
  const cudaError_t second = cudaFuncGetParamInfo(kernel, 1, &offset, &size);
  if (second != cudaSuccess && second != cudaErrorInvalidValue) {
    check_cuda(second);
  }
  cudaGetLastError();  // that there is no such parameter is an answer
  return fits && second == cudaErrorInvalidValue;
}

}  // namespace

struct KernelLibrary::State {
  int device = 0;
  cudaLibrary_t library = nullptr;

  State() = default;
  ~State() {
    if (library != nullptr && cudaLibraryUnload(library) != cudaSuccess) {
      cudaGetLastError();
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

KernelLibrary::KernelLibrary(std::span<const std::byte> code, const CudaContext& context)
    : state_(std::make_unique<State>()) {
  constexpr std::string_view kElf = "\177ELF";
  constexpr size_t kElfHeader = 64;
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  require(text.size() >= kElfHeader && text.starts_with(kElf),
          "{} bytes that are no code of kernels", text.size());
  state_->device = context.state().device.index;
  check_cuda(cudaSetDevice(state_->device));
  check_cuda(
      cudaLibraryLoadData(&state_->library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
}

KernelLibrary::~KernelLibrary() = default;
KernelLibrary::KernelLibrary(KernelLibrary&&) noexcept = default;
KernelLibrary& KernelLibrary::operator=(KernelLibrary&&) noexcept = default;

CUkern_st* KernelLibrary::kernel(const std::string& name, const KernelNeeds& needs) const {
  check_cuda(cudaSetDevice(state_->device));
  cudaKernel_t kernel = nullptr;
  const cudaError_t found = cudaLibraryGetKernel(&kernel, state_->library, name.c_str());
  if (found == cudaErrorSymbolNotFound) {
    cudaGetLastError();
    fail("the code has no kernel {}", name);
  }
  check_cuda(found);
  require(takes_one_parameter(kernel, needs.parameter_bytes),
          "kernel {} does not take one parameter of {} bytes", name, needs.parameter_bytes);
  // The driver loads kernels when they are first needed, which may wait for the device, and a
  // capture forbids: this call needs it.
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel));
  int most = 0;
  check_cuda(
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, state_->device));
  const int64_t free = most - static_cast<int64_t>(attributes.sharedSizeBytes);
  require(needs.shared_bytes >= 0 && needs.shared_bytes <= free,
          "kernel {} needs {} bytes of shared memory; there are {}", name, needs.shared_bytes,
          free);
  if (needs.shared_bytes > 0) {
    check_cuda(cudaKernelSetAttributeForDevice(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(needs.shared_bytes),
                                               state_->device));
  }
  return kernel;
}

}  // namespace sparsellm
