#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <source_location>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/cuda_queue.h"
#include "kernels/base/cuda_status.cuh"
#include "kernels/base/error.h"
#include "kernels/base/exec.h"
#include "kernels/base/op_states.h"
#include "kernels/base/source_path.h"

namespace sparsellm {

struct CudaContext::State {
  Device device;
  CudaQueue main;
  CudaQueue side;  // without a workspace, which side_queue() is given
  cublasLtHandle_t blas = nullptr;
  Buffer main_workspace;
  Buffer counters;  // of both queues
  Buffer tagged;    // of both queues
  int multiprocessors = 0;
  int compute_capability = 0;  // 10 * major + minor
  bool has_pdl = false;        // whether kernels of this build can be launched so on this device
  OpStates op_states;

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
inline cudaError_t cause_of_library_error() {
  const cudaError_t told = cudaPeekAtLastError();
  const cudaError_t found = told != cudaSuccess ? told : cudaStreamQuery(cudaStreamPerThread);
  return found == cudaErrorNotReady ? cudaSuccess : found;
}

inline void check_cublas(cublasStatus_t status,
                         std::source_location where = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    const cudaError_t cause = cause_of_library_error();
    if (is_device_lost(cause)) {
      fail_cuda("cuBLAS", cudaGetErrorString(cause), cause, where);
    }
    fail_cuda("cuBLAS", cublasLtGetStatusString(status),
              status == CUBLAS_STATUS_ALLOC_FAILED ? cudaErrorMemoryAllocation : cause, where);
  }
}

inline CudaContext::State& cuda_state(const ExecContext& ctx) {
  require(ctx.cuda != nullptr, "a CUDA op was called without a CUDA context");
  return ctx.cuda->state();
}

// Where an op enqueues.
inline const CudaQueue& cuda_queue(const ExecContext& ctx) {
  const CudaContext::State& cuda = cuda_state(ctx);
  return ctx.queue != nullptr ? *ctx.queue : cuda.main;
}

// Whether a graph is being captured: then nothing may allocate or synchronise.
inline bool is_capturing(const ExecContext& ctx) {
  cudaStreamCaptureStatus status{};
  check_cuda(cudaStreamIsCapturing(cuda_queue(ctx).stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace sparsellm
