#pragma once

#include "kernels/paged_kv.h"

namespace sparsellm {

// What one forward pass works on, in device memory.
struct StepInputs {
  Tensor token_ids;  // i32 [tokens]
  PagedBatch batch;
};

}  // namespace sparsellm
