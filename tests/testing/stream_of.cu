#include "kernels/base/cuda_state.cuh"
#include "tests/testing/stream_of.h"

namespace sparsellm::testing {

cudaStream_t stream_of(const CudaContext& context) { return context.state().main.stream; }

}  // namespace sparsellm::testing
