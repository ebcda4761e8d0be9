#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <memory>
#include <source_location>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/cuda_status.cuh"
#include "kernels/base/error.h"
#include "kernels/base/exec.h"
#include "kernels/base/source_path.h"

namespace sparsellm {

// What an op keeps from call to call. The op alone knows the type behind it.
struct OpState {
  virtual ~OpState() = default;
};

struct CudaContext::State {
  Device device;
  cudaStream_t stream = nullptr;  // where everything is enqueued
  cublasLtHandle_t blas = nullptr;
  Buffer blas_memory;              // of kWorkspaceBytes
  void* blas_workspace = nullptr;  // as large; of what is enqueued: blas_memory or OnSideStream's
  cudaStream_t other_stream = nullptr;  // what OnSideStream puts in the place of stream, and back
  // u32 [kCounters], 0 between kernels, which leave them so; one array for each stream.
  static constexpr int64_t kCounters = 1024;
  Buffer counter_memory;
  uint32_t* counters = nullptr;
  uint32_t* other_counters = nullptr;
  int multiprocessors = 0;
  int compute_capability = 0;  // 10 * major + minor
  bool begins_early = false;   // whether the kernels of this build can, on this device
  std::unique_ptr<OpState> gemm_plans;
  std::unique_ptr<OpState> record_plans;

  State() = default;
  ~State();  // waits for what was enqueued
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

[[noreturn]] inline void fail_cuda(const char* library, const char* what, cudaError_t status,
                                   std::source_location where) {
  cudaGetLastError();  // told here, and not once more by the next kernel that is launched
  const std::string text = fmt::format("{} failed at {}:{}: {}", library,
                                       source_path(where.file_name()), where.line(), what);
  if (status == cudaErrorMemoryAllocation) {
    throw OutOfMemory(text);
  }
  if (is_device_lost(status)) {
    throw DeviceLost(text);
  }
  if (is_capture_failure(status)) {
    throw CaptureFailed(text);
  }
  throw Error(text);
}

// Both throw OutOfMemory for want of memory, DeviceLost for a device that takes nothing more,
// CaptureFailed for a capture that was broken, Error for everything else.
inline void check_cuda(cudaError_t status,
                       std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess) [[unlikely]] {
    fail_cuda("CUDA", cudaGetErrorString(status), status, where);
  }
}

// Why a call of a library failed. cuBLASLt has a CUDA runtime of its own, whose errors are not
// known to ours; but a lost device makes every call fail, so any cheap call tells.
inline cudaError_t error_behind_library() {
  const cudaError_t told = cudaPeekAtLastError();
  const cudaError_t found = told != cudaSuccess ? told : cudaStreamQuery(cudaStreamPerThread);
  return found == cudaErrorNotReady ? cudaSuccess : found;
}

inline void check_cublas(cublasStatus_t status,
                         std::source_location where = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    const cudaError_t cause = error_behind_library();
    if (is_device_lost(cause)) {
      fail_cuda("cuBLAS", cudaGetErrorString(cause), cause, where);
    }
    fail_cuda("cuBLAS", cublasLtGetStatusString(status),
              status == CUBLAS_STATUS_ALLOC_FAILED ? cudaErrorMemoryAllocation : cause, where);
  }
}

// Whether a graph is being captured: then nothing may allocate or synchronise.
inline bool is_capturing(const CudaContext::State& cuda) {
  cudaStreamCaptureStatus status{};
  check_cuda(cudaStreamIsCapturing(cuda.stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

inline CudaContext::State& cuda_state(const ExecContext& ctx) {
  require(ctx.cuda != nullptr, "a CUDA op was called without a CUDA context");
  return ctx.cuda->state();
}

}  // namespace sparsellm
