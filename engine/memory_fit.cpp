#include "engine/memory_fit.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/format_selection.h"
#include "engine/resolve_options.h"
#include "engine/step_runner.h"
#include "kernels/base/error.h"
#include "kernels/paged_kv.h"
#include "models/build_decoder.h"
#include "models/weights/shape_loader.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int64_t kv_cache_bytes(int64_t pages, const KvShape& shape) {
  return checked_mul(pages, kPageSize * shape.bytes_per_token(), "bytes of the KV cache");
}

// What may still be taken; negative if others hold more than they leave.
int64_t takeable(const DeviceMemory& memory, const EngineOptions& options) {
  return memory.free - (options.device.is_cuda() ? kept_bytes(options, memory) : 0);
}

MemoryFit fit_of_rank(const ModelConfig& config, WeightLoader& shapes,
                      const EngineOptions& options) {
  const std::unique_ptr<Decoder> decoder = build_decoder(config, shapes);
  const KvShape shape = choose_kv_shape(options, *decoder);
  MemoryFit fit{.device = memory_of_rank(options),
                .dtype = decoder->activation_dtype(),
                .weights = shapes.loaded_bytes(),
                .step = runner_memory_bytes(*decoder, runner_options(options, config)),
                .kv_per_token = shape.bytes_per_token(),
                .context_size = choose_context_size(options, config),
                .linear_weights = decoder->linear_weights()};
  const DeviceMemory left{.total = fit.device.total,
                          .free = fit.device.free - fit.weights - fit.step};
  const auto tokens_if_they_fit = [&](int64_t pages) {
    return kv_cache_bytes(pages, shape) <= takeable(left, options) ? pages * kPageSize : 0;
  };
  fit.run_kv_tokens = tokens_if_they_fit(choose_kv_pages(options, fit.context_size, shape, left));
  fit.kv_tokens = std::max(tokens_if_they_fit(max_kv_pages(options, fit.context_size, shape, left)),
                           fit.run_kv_tokens);
  return fit;
}

}  // namespace

int64_t MemoryFit::requests_of(int64_t tokens) const {
  return kv_tokens / kPageSize / pages_for(tokens);
}

namespace {

// Whether weights that would be converted are encoded to see what they take, or it is expected.
enum class Conversion : uint8_t { encoded, expected };

MemoryFit fit_as_it_is(const ModelConfig& model, DType weight_dtype, const EngineOptions& options,
                       const FitWeights& weights, Conversion conversion) {
  const ModelConfig config = config_to_run(model, options);
  LinearShapes linears{.store = weights.store,
                       .format = options.weight_format,
                       .records = options.records,
                       .encodes = conversion == Conversion::encoded,
                       .random = weights.random,
                       .threads = options.threads};
  std::vector<FormatChoice> formats;
  if (weights.random) {
    formats = select_formats(config, random_origin(*weights.random), options);
    linears.random = in_formats(*weights.random, layer_formats(formats));
  } else if (options.weight_format == kAutoFormat) {
    require(weights.store != nullptr, "the fastest formats of a model are those of its weights");
    formats = select_formats(config, stored_origin(*weights.store, weight_dtype, options), options);
    linears.format.clear();
    linears.layers = layer_formats(formats);
  }
  const int degree = options.tensor_parallel.degree;
  MemoryFit poorest;
  EngineOptions of_rank = options;
  for (int rank = 0; rank < degree; ++rank) {
    if (!options.tensor_parallel.devices.empty()) {
      of_rank.device = options.tensor_parallel.devices.at(static_cast<size_t>(rank));
    }
    if (options.progress) {  // of all ranks
      linears.progress = [&options, rank, degree](int64_t done, int64_t total) {
        options.progress(rank * total + done, degree * total);
      };
    }
    ShapeLoader shapes(of_rank.device, weight_dtype, linears, {.rank = rank, .degree = degree});
    MemoryFit fit = fit_of_rank(config, shapes, of_rank);
    const auto room = [](const MemoryFit& of) { return std::pair(of.kv_tokens, -of.weights); };
    if (rank == 0 || room(fit) < room(poorest)) {
      poorest = std::move(fit);
    }
  }
  poorest.formats = std::move(formats);
  return poorest;
}

// Smaller ones, if there are others that could be. To encode all weights once more would take long.
std::optional<MemoryFit> fit_with_small_records(const ModelConfig& model, DType weight_dtype,
                                                EngineOptions options, FitWeights weights) {
  constexpr std::string_view kSize = "size";
  const bool smaller =
      options.device.is_cuda() && options.records != kSize && !has_narrow_values(options.records);
  if (!smaller || (!weights.random && !may_be_records(options.weight_format))) {
    return std::nullopt;
  }
  options.records = kSize;
  options.log = nullptr;  // the choices of the first fit are in the log
  if (weights.random) {
    weights.random->records = kSize;
    for (auto& [module, linear] : weights.random->planned) {
      linear.records = kSize;
    }
  }
  return fit_as_it_is(model, weight_dtype, options, weights, Conversion::expected);
}

}  // namespace

MemoryFit fit_memory(const ModelConfig& model, DType weight_dtype, const EngineOptions& options,
                     const FitWeights& weights) {
  MemoryFit fit = fit_as_it_is(model, weight_dtype, options, weights, Conversion::encoded);
  if (fit.run_kv_tokens == 0) {
    const std::optional<MemoryFit> smaller =
        fit_with_small_records(model, weight_dtype, options, weights);
    fit.fits_with_small_records = smaller && smaller->run_kv_tokens > 0;
  }
  return fit;
}

void require_fit(const MemoryNeed& need, const DeviceMemory& memory, Held held,
                 const EngineOptions& options) {
  const int64_t others = checked_add(need.weights, need.step, "bytes of weights and a step");
  const int64_t all = checked_add(others, need.kv, "bytes of a model and its KV cache");
  // As it was, or would be, without the model.
  const DeviceMemory before{
      .total = memory.total,
      .free = memory.free + (held == Held::weights_and_step ? others : 0),
  };
  const int64_t left = takeable(before, options);
  if (all <= left) {
    return;
  }
  const int64_t share = memory.total - (options.device.is_cuda() ? kept_bytes(options, memory) : 0);
  throw OutOfMemory(fmt::format(
      "the model does not fit on {} with a GPU memory utilization of {}: weights {:.1f} MiB, step "
      "{:.1f} MiB, one context of {} tokens {:.1f} MiB, KV cache {:.1f} MiB; the share is {:.1f} "
      "MiB, of which others hold {:.1f} MiB; {:.1f} MiB are free",
      to_string(options.device), options.gpu_memory_utilization, mib(need.weights), mib(need.step),
      need.context_size, mib(need.context), mib(need.kv), mib(share),
      mib(before.total - before.free), mib(memory.free)));
}

void require_model_fits(const ModelConfig& config, WeightLoader& shapes,
                        const EngineOptions& options, const DeviceMemory& memory) {
  const std::unique_ptr<Decoder> decoder = build_decoder(config, shapes);
  const KvShape shape = choose_kv_shape(options, *decoder);
  MemoryNeed need{.weights = shapes.loaded_bytes(),
                  .step = runner_memory_bytes(*decoder, runner_options(options, config)),
                  .context_size = choose_context_size(options, config)};
  const DeviceMemory left{.total = memory.total, .free = memory.free - need.weights - need.step};
  need.context = kv_cache_bytes(pages_for(need.context_size), shape);
  need.kv = kv_cache_bytes(choose_kv_pages(options, need.context_size, shape, left), shape);
  require_fit(need, memory, Held::nothing, options);
}

int64_t room_for_linear_layers(const ModelConfig& config, WeightLoader& shapes,
                               const EngineOptions& options, const DeviceMemory& memory) {
  const std::unique_ptr<Decoder> decoder = build_decoder(config, shapes);
  int64_t others = shapes.loaded_bytes();
  for (const FormatSum& sum : decoder->linear_weights()) {
    others -= sum.bytes;
  }
  const KvShape shape = choose_kv_shape(options, *decoder);
  const DeviceMemory full{.total = memory.total, .free = 0};
  const int64_t pages = choose_kv_pages(options, choose_context_size(options, config), shape, full);
  return takeable(memory, options) - others -
         runner_memory_bytes(*decoder, runner_options(options, config)) -
         kv_cache_bytes(pages, shape);
}

int64_t fitting_kv_pages(const MemoryNeed& others, const KvShape& shape,
                         const EngineOptions& options, const DeviceMemory& memory) {
  const int64_t pages = choose_kv_pages(options, others.context_size, shape, memory);
  if (options.device.is_cuda()) {
    MemoryNeed need = others;
    need.context = kv_cache_bytes(pages_for(need.context_size), shape);
    need.kv = kv_cache_bytes(pages, shape);
    require_fit(need, memory, Held::weights_and_step, options);
  }
  return pages;
}

}  // namespace sparsellm
