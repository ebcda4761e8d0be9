#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_state.cuh"

namespace sparsellm {
namespace {

// Stands for all kernels of a build.
__global__ void any_kernel() {}

cudaStream_t stream_of(const CudaContext& context, const CudaQueue* queue) {
  return queue != nullptr ? queue->stream : context.state().main.stream;
}

}  // namespace

CudaContext::CudaContext(Device device) : state_(std::make_unique<State>()) {
  require(device.is_cuda(), "a CUDA context on {}", to_string(device));
  state_->device = device;
  check_cuda(cudaSetDevice(device.index));
  check_cuda(cudaStreamCreateWithFlags(&state_->main.stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamCreateWithFlags(&state_->side.stream, cudaStreamNonBlocking));
  check_cublas(cublasLtCreate(&state_->blas));
  state_->main_workspace = Buffer(device, kWorkspaceBytes, "the workspace of cuBLAS");
  state_->main.workspace = state_->main_workspace.data();
  constexpr int64_t kCounterBytes = CudaQueue::kCounters * int64_t{sizeof(uint32_t)};
  state_->counters = Buffer(device, 2 * kCounterBytes, "counters");
  check_cuda(cudaMemsetAsync(state_->counters.data(), 0, 2 * kCounterBytes, state_->main.stream));
  constexpr int64_t kTaggedBytes = (1 + CudaQueue::kTagged) * int64_t{sizeof(uint64_t)};
  state_->tagged = Buffer(device, 2 * kTaggedBytes, "words of thread blocks");
  check_cuda(cudaMemsetAsync(state_->tagged.data(), 0, 2 * kTaggedBytes, state_->main.stream));
  check_cuda(cudaStreamSynchronize(state_->main.stream));
  state_->main.tagged = static_cast<uint64_t*>(state_->tagged.data());
  state_->side.tagged = state_->main.tagged + 1 + CudaQueue::kTagged;
  state_->main.counters = static_cast<uint32_t*>(state_->counters.data());
  state_->side.counters = state_->main.counters + CudaQueue::kCounters;
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
  state_->has_pdl = code.ptxVersion >= kWaits;
}

CudaContext::State::~State() {
  cudaSetDevice(device.index);
  for (cudaStream_t one : {main.stream, side.stream}) {
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
  check_cuda(cudaStreamSynchronize(state_->main.stream));
  check_cuda(cudaStreamSynchronize(state_->side.stream));
}

void CudaContext::wait() const noexcept {
  for (cudaStream_t one : {state_->main.stream, state_->side.stream}) {
    if (cudaStreamSynchronize(one) != cudaSuccess) {
      cudaGetLastError();
    }
  }
}

CudaQueue CudaContext::side_queue(void* workspace) const {
  CudaQueue queue = state_->side;
  queue.workspace = workspace;
  return queue;
}

void CudaContext::copy(void* destination, const void* source, int64_t bytes,
                       const CudaQueue* queue) const {
  if (bytes > 0) {
    copy_async(destination, source, bytes, queue);
    check_cuda(cudaStreamSynchronize(stream_of(*this, queue)));
  }
}

void CudaContext::copy_async(void* destination, const void* source, int64_t bytes,
                             const CudaQueue* queue) const {
  check_cuda(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), cudaMemcpyDefault,
                             stream_of(*this, queue)));
}

void CudaContext::copy_rows_async(void* destination, int64_t destination_pitch, const void* source,
                                  int64_t source_pitch, int64_t width, int64_t rows) const {
  check_cuda(cudaMemcpy2DAsync(destination, static_cast<size_t>(destination_pitch), source,
                               static_cast<size_t>(source_pitch), static_cast<size_t>(width),
                               static_cast<size_t>(rows), cudaMemcpyDefault, state_->main.stream));
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

void StreamFence::set(const CudaQueue* queue) {
  check_cuda(cudaEventRecord(state_->event, stream_of(state_->context, queue)));
}
void StreamFence::wait(const CudaQueue* queue) const {
  check_cuda(cudaStreamWaitEvent(stream_of(state_->context, queue), state_->event));
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

CudaEvent::CudaEvent(const CudaContext& context, Timing timing, const CudaQueue* queue)
    : state_(std::make_unique<State>()) {
  state_->stream = stream_of(context, queue);
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
