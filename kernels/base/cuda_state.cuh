#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <memory>
#include <source_location>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/exec.h"

namespace sparsellm {

// What an op keeps from call to call. The op alone knows the type behind it.
struct OpState {
  virtual ~OpState() = default;
};

struct CudaContext::State {
  Device device;
  cudaStream_t stream = nullptr;
  cublasLtHandle_t blas = nullptr;
  Buffer blas_workspace;
  int multiprocessors = 0;
  std::unique_ptr<OpState> gemm_plans;

  State() = default;
  ~State();  // waits for what was enqueued
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

inline void check_cuda(cudaError_t status,
                       std::source_location where = std::source_location::current()) {
  require(status == cudaSuccess, "CUDA failed at {}:{}: {}", where.file_name(), where.line(),
          cudaGetErrorString(status));
}

inline void check_cublas(cublasStatus_t status,
                         std::source_location where = std::source_location::current()) {
  require(status == CUBLAS_STATUS_SUCCESS, "cuBLAS failed at {}:{}: {}", where.file_name(),
          where.line(), cublasLtGetStatusString(status));
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
