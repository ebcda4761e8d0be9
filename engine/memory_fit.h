#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine_options.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "models/config.h"
#include "models/format_choice.h"
#include "models/format_sum.h"
#include "models/kv_cache.h"
#include "models/weights/random_weights.h"
#include "models/weights/weight_loader.h"
#include "models/weights/weight_store.h"

namespace sparsellm {

// How a model would share a device's memory, in bytes. Of several ranks, that of the one with the
// least room for a KV cache: all have as many pages as it can have.
struct MemoryFit {
  DeviceMemory device;
  DType dtype = DType::f16;  // of activations, keys and values
  int64_t weights = 0;
  int64_t step = 0;  // the tensors of a step and the libraries' workspace
  int64_t kv_per_token = 0;
  int64_t kv_tokens = 0;      // that a KV cache has room for; 0 if the model does not fit
  int64_t run_kv_tokens = 0;  // of the KV cache of an engine with these options; 0 the same
  int64_t context_size = 0;
  std::vector<FormatSum> linear_weights = {};  // part of `weights`
  std::vector<FormatChoice> formats = {};      // of the weight format "auto"
  // Of what does not fit: whether it would with EngineOptions::records for size.
  bool fits_with_small_records = false;

  // That fit at once, if each has `tokens` tokens of prompt and continuation.
  int64_t requests_of(int64_t tokens) const;
};

// Where the weights of linear layers would come from: sparse ones take what they take in the store,
// or, if they are random, can be expected to take.
struct FitWeights {
  const WeightStore* store = nullptr;
  std::optional<RandomWeights> random = {};  // of Engine::load_random(), instead of a store
};

// Looks at shapes alone, for each rank, but reads and encodes weights of a store that would be
// converted while loading (options.progress): nothing is loaded. weight_dtype is that of the
// weights in memory; on CUDA activations have it too. Random weights have formats of their own,
// whatever the options say. Throws Error for options that are out of range, for a weight format
// that cannot be made of the weights, and for a sparse one or "auto" without a store or random
// weights.
MemoryFit fit_memory(const ModelConfig& model, DType weight_dtype, const EngineOptions& options,
                     const FitWeights& weights = {});

// What an engine holds of a device, in bytes.
struct MemoryNeed {
  int64_t weights = 0;
  int64_t step = 0;
  int64_t context_size = 0;  // tokens
  int64_t context = 0;       // the KV cache of one full context
  int64_t kv = 0;            // the KV cache that is wanted
};

// Of which of them the memory that is given as free is gone already.
enum class Held : uint8_t { nothing, weights_and_step };

// Whether the need fits what the options let an engine take of `memory`: on CUDA the share
// gpu_memory_utilization of all, less what others hold; on the CPU everything. Throws OutOfMemory,
// which has all of this in one line, unless it does: a caller may try with less.
void require_fit(const MemoryNeed& need, const DeviceMemory& memory, Held held,
                 const EngineOptions& options);

// Before weights are loaded: `shapes` is WeightLoader::shapes() of their loader. Those whose size
// is known when they are encoded count with the least that they can take. On CUDA alone, where
// memory is not lent but taken.
void require_model_fits(const ModelConfig& config, WeightLoader& shapes,
                        const EngineOptions& options, const DeviceMemory& memory);

// What a CUDA device has left for the weights of linear layers, in bytes, when all else is there:
// other weights, the tensors of a step with the formats of `shapes`, and the requested KV cache,
// or else one context. May be negative.
int64_t room_for_linear_layers(const ModelConfig& config, WeightLoader& shapes,
                               const EngineOptions& options, const DeviceMemory& memory);

// Pages of the KV cache when weights and the tensors of a step are there: choose_kv_pages(), if it
// fits by require_fit().
int64_t fitting_kv_pages(const MemoryNeed& others, const KvShape& shape,
                         const EngineOptions& options, const DeviceMemory& memory);

}  // namespace sparsellm
