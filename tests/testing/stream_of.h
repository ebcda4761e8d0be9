#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/cuda_context.h"

namespace sparsellm::testing {

// Of the main queue; for what takes a stream and no context.
cudaStream_t stream_of(const CudaContext& context);

}  // namespace sparsellm::testing
