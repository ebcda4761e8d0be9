#include "engine/memory_fit.h"

#include <memory>

#include "engine/step_runner.h"
#include "kernels/paged_kv.h"
#include "models/registry.h"
#include "models/shape_loader.h"

namespace sparsellm {

int64_t MemoryFit::requests_of(int64_t tokens) const {
  return kv_tokens / kPageSize / pages_for(tokens);
}

MemoryFit fit_memory(const ModelConfig& config, DType weight_dtype, const EngineOptions& options,
                     const FitWeights& weights) {
  ShapeLoader shapes(
      options.device, weight_dtype,
      {.store = weights.store, .format = options.weight_format, .density = weights.density});
  const std::unique_ptr<Decoder> decoder = build_decoder(config, shapes);
  const KvShape shape = decoder->kv_shape();
  MemoryFit fit{.device = device_memory(options.device),
                .dtype = decoder->activation_dtype(),
                .weights = shapes.loaded_bytes(),
                .step = runner_memory_bytes(*decoder, runner_options(options, config)),
                .kv_per_token = shape.bytes_per_token(),
                .kv_tokens = 0,
                .context_size = choose_context_size(options, config)};
  const DeviceMemory left{.total = fit.device.total,
                          .free = fit.device.free - fit.weights - fit.step};
  const int64_t pages = most_kv_pages(options, fit.context_size, shape, left);
  if (pages * kPageSize * fit.kv_per_token <= left.free) {
    fit.kv_tokens = pages * kPageSize;
  }
  return fit;
}

}  // namespace sparsellm
