#include "kernels/gemm_stream_cuda.h"

// Stands in for gemm_stream_cuda.cu in a build that has no code for compute capability 9.0.
namespace sparsellm {

bool gemm_stream_takes(const CudaContext::State&, const GemmOperands&) { return false; }

void gemm_stream_cuda(const GemmOperands&, StreamMemory, const ExecContext&) {
  fail(
      "streamed products are for compute capability 9.0, which is not among the GPU architectures "
      "of this build");
}

}  // namespace sparsellm
