#pragma once

#include <cstdint>

#include "engine/engine_options.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "models/config.h"
#include "models/weight_store.h"

namespace sparsellm {

// How a model would share a device's memory, in bytes.
struct MemoryFit {
  DeviceMemory device;
  DType dtype = DType::f16;  // of activations, keys and values
  int64_t weights = 0;
  int64_t step = 0;  // the tensors of a step and the libraries' workspace
  int64_t kv_per_token = 0;
  int64_t kv_tokens = 0;  // that a KV cache has room for; 0 if the model does not fit
  int64_t context_size = 0;

  // That fit at once, if each has `tokens` tokens of prompt and continuation.
  int64_t requests_of(int64_t tokens) const;
};

// Looks at shapes alone: nothing is loaded. weight_dtype is that of the weights in memory; on CUDA
// activations have it too. `store` is where the weights would come from, if it matters: sparse ones
// take what they take there. Throws Error for options that are out of range, and for a weight
// format that would be made while loading.
MemoryFit fit_memory(const ModelConfig& config, DType weight_dtype, const EngineOptions& options,
                     const WeightStore* store = nullptr);

}  // namespace sparsellm
