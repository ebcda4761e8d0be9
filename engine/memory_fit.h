#pragma once

#include <cstdint>
#include <optional>

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

// Where the weights of linear layers would come from: sparse ones take what they take in the store,
// or, if they are random, can be expected to take.
struct FitWeights {
  const WeightStore* store = nullptr;
  std::optional<double> density = {};  // the share of nonzeros in random weights
};

// Looks at shapes alone: nothing is loaded. weight_dtype is that of the weights in memory; on CUDA
// activations have it too. Throws Error for options that are out of range, and for a weight format
// that would be made while loading of weights with an unknown number of nonzeros.
MemoryFit fit_memory(const ModelConfig& config, DType weight_dtype, const EngineOptions& options,
                     const FitWeights& weights = {});

}  // namespace sparsellm
