#include "kernels/base/cuda_graph.h"
#include "kernels/base/cuda_state.cuh"

namespace sparsellm {

struct CudaGraph::State {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  ~State() {
    if (executable != nullptr) {
      cudaGraphExecDestroy(executable);
    }
    if (graph != nullptr) {
      cudaGraphDestroy(graph);
    }
  }
};

CudaGraph::CudaGraph(const CudaContext& context, const std::function<void()>& work)
    : state_(std::make_unique<State>()) {
  state_->stream = context.state().main.stream;
  check_cuda(cudaSetDevice(context.state().device.index));
  check_cuda(cudaStreamBeginCapture(state_->stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaGraph_t unfinished = nullptr;
    const cudaError_t status = cudaStreamEndCapture(state_->stream, &unfinished);
    if (unfinished != nullptr) {
      cudaGraphDestroy(unfinished);
    }
    cudaGetLastError();
    if (status == cudaErrorStreamCaptureInvalidated) {
      check_cuda(status);  // why `work` failed, whatever it made of that
    }
    throw;
  }
  check_cuda(cudaStreamEndCapture(state_->stream, &state_->graph));
  check_cuda(cudaGraphInstantiate(&state_->executable, state_->graph, 0));
}

CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;

void CudaGraph::launch() const { check_cuda(cudaGraphLaunch(state_->executable, state_->stream)); }

}  // namespace sparsellm
