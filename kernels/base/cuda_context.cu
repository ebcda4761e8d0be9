#include <utility>

#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_state.cuh"

namespace sparsellm {
namespace {

// Stands for all kernels of a build.
__global__ void any_kernel() {}

}  // namespace

CudaContext::CudaContext(Device device) : state_(std::make_unique<State>()) {
  require(device.is_cuda(), "a CUDA context on {}", to_string(device));
  state_->device = device;
  check_cuda(cudaSetDevice(device.index));
  check_cuda(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamCreateWithFlags(&state_->other_stream, cudaStreamNonBlocking));
  check_cublas(cublasLtCreate(&state_->blas));
  state_->blas_memory = Buffer(device, kWorkspaceBytes, "the workspace of cuBLAS");
  state_->blas_workspace = state_->blas_memory.data();
  constexpr int64_t kCounterBytes = State::kCounters * int64_t{sizeof(uint32_t)};
  state_->counter_memory = Buffer(device, 2 * kCounterBytes, "counters");
  check_cuda(cudaMemsetAsync(state_->counter_memory.data(), 0, 2 * kCounterBytes, state_->stream));
  check_cuda(cudaStreamSynchronize(state_->stream));
  state_->counters = reinterpret_cast<uint32_t*>(state_->counter_memory.data());
  state_->other_counters = state_->counters + State::kCounters;
  check_cuda(cudaDeviceGetAttribute(&state_->multiprocessors, cudaDevAttrMultiProcessorCount,
                                    device.index));
  int major = 0;
  int minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
  state_->compute_capability = 10 * major + minor;
  cudaFuncAttributes code{};
  check_cuda(cudaFuncGetAttributes(&code, reinterpret_cast<const void*>(&any_kernel)));
  constexpr int kWaits = 90;  // code for earlier architectures does not, wherever it runs
  state_->begins_early = code.ptxVersion >= kWaits;
}

CudaContext::State::~State() {
  cudaSetDevice(device.index);
  for (cudaStream_t one : {stream, other_stream}) {
    if (one != nullptr) {
      cudaStreamSynchronize(one);
      cudaStreamDestroy(one);
    }
  }
  if (blas != nullptr) {
    cublasLtDestroy(blas);
  }
}

CudaContext::~CudaContext() = default;

void CudaContext::make_current() const { check_cuda(cudaSetDevice(state_->device.index)); }

void CudaContext::synchronize() const {
  check_cuda(cudaStreamSynchronize(state_->stream));
  check_cuda(cudaStreamSynchronize(state_->other_stream));
}

void CudaContext::wait() const noexcept {
  for (cudaStream_t one : {state_->stream, state_->other_stream}) {
    if (cudaStreamSynchronize(one) != cudaSuccess) {
      cudaGetLastError();
    }
  }
}

void CudaContext::copy(void* destination, const void* source, int64_t bytes) const {
  if (bytes > 0) {
    copy_async(destination, source, bytes);
    check_cuda(cudaStreamSynchronize(state_->stream));
  }
}

void CudaContext::copy_async(void* destination, const void* source, int64_t bytes) const {
  check_cuda(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), cudaMemcpyDefault,
                             state_->stream));
}

void CudaContext::copy_rows_async(void* destination, int64_t destination_pitch, const void* source,
                                  int64_t source_pitch, int64_t width, int64_t rows) const {
  check_cuda(cudaMemcpy2DAsync(destination, static_cast<size_t>(destination_pitch), source,
                               static_cast<size_t>(source_pitch), static_cast<size_t>(width),
                               static_cast<size_t>(rows), cudaMemcpyDefault, state_->stream));
}

OnSideStream::OnSideStream(const CudaContext& context, void* workspace)
    : context_(context), own_workspace_(std::exchange(context.state().blas_workspace, workspace)) {
  std::swap(context.state().stream, context.state().other_stream);
  std::swap(context.state().counters, context.state().other_counters);
}
OnSideStream::~OnSideStream() {
  std::swap(context_.state().stream, context_.state().other_stream);
  std::swap(context_.state().counters, context_.state().other_counters);
  context_.state().blas_workspace = own_workspace_;
}

struct StreamFence::State {
  const CudaContext& context;
  cudaEvent_t event = nullptr;
};

StreamFence::StreamFence(const CudaContext& context)
    : state_(std::make_unique<State>(State{.context = context})) {
  check_cuda(cudaEventCreateWithFlags(&state_->event, cudaEventDisableTiming));
}
StreamFence::~StreamFence() { cudaEventDestroy(state_->event); }

void StreamFence::set() {
  check_cuda(cudaEventRecord(state_->event, state_->context.state().stream));
}
void StreamFence::wait() const {
  check_cuda(cudaStreamWaitEvent(state_->context.state().stream, state_->event));
}

struct CudaEvent::State {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;

  ~State() {
    if (event != nullptr) {
      cudaEventDestroy(event);
    }
  }
};

CudaEvent::CudaEvent(const CudaContext& context, Timing timing)
    : state_(std::make_unique<State>()) {
  state_->stream = context.state().stream;
  check_cuda(cudaSetDevice(context.state().device.index));
  check_cuda(cudaEventCreateWithFlags(
      &state_->event, timing == Timing::yes ? cudaEventDefault : cudaEventDisableTiming));
}

CudaEvent::~CudaEvent() = default;
CudaEvent::CudaEvent(CudaEvent&&) noexcept = default;
CudaEvent& CudaEvent::operator=(CudaEvent&&) noexcept = default;

void CudaEvent::record() {
  cudaStreamCaptureStatus status{};
  check_cuda(cudaStreamIsCapturing(state_->stream, &status));
  const bool captured = status != cudaStreamCaptureStatusNone;
  check_cuda(cudaEventRecordWithFlags(state_->event, state_->stream,
                                      captured ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void CudaEvent::synchronize() const { check_cuda(cudaEventSynchronize(state_->event)); }

double CudaEvent::seconds_since(const CudaEvent& earlier) const {
  float milliseconds = 0.0f;
  check_cuda(cudaEventElapsedTime(&milliseconds, earlier.state_->event, state_->event));
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace sparsellm
