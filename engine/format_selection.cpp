#include "engine/format_selection.h"

#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/memory_fit.h"
#include "engine/resolve_options.h"
#include "kernels/base/error.h"
#include "kernels/base/token_buckets.h"
#include "kernels/base/tune_cache.h"
#include "kernels/tune/make_meter.h"
#include "models/linear_layers.h"
#include "models/loaded_format_meter.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"
#include "models/weights/shape_loader.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// Decode steps alone: prompts are computed densely, or nearly so, in any format.
std::vector<int64_t> decode_buckets(const EngineOptions& options) {
  std::vector<int64_t> buckets;
  for (const int64_t tokens : options.decode_tokens) {
    buckets.push_back(token_bucket(tokens));
  }
  if (buckets.empty()) {
    return token_buckets_up_to(options.max_requests);
  }
  std::ranges::sort(buckets);
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

// That all parts are stored in and are loaded in, none of them with other values than it has.
std::string stored_format(const WeightStore& store, const std::vector<WeightStore::Stored>& parts,
                          DType dtype, Device device) {
  const WeightStore::Stored& first = parts.front();
  using Form = WeightStore::Form;
  const bool alike = std::ranges::all_of(parts, [&](const WeightStore::Stored& part) {
    const bool as_it_is = part.form == Form::encoded && (!device.is_cuda() || part.dtype == dtype);
    return part.format == first.format && (as_it_is || part.form == Form::quantized);
  });
  return alike && store.joined_format(parts) == first.format ? first.format : std::string();
}

std::string planned_format(const JoinedLinear& layer, std::string other) {
  return layer.always_dense ? std::string(dense_format().name()) : std::move(other);
}

// LayerWeight::zeros.
std::string places_of_zeros(const RandomWeights& weights, const JoinedLinear& layer) {
  std::vector<std::string> patterns;
  for (const LinearLayer& part : layer.parts) {
    std::string pattern = to_string(weights.linear(part.module + ".weight").pattern);
    if (std::ranges::find(patterns, pattern) == patterns.end()) {
      patterns.push_back(std::move(pattern));
    }
  }
  return fmt::format("{}", fmt::join(patterns, " "));
}

// What a part takes in the form that it is stored in; of a slice, which begins where the whole
// does.
int64_t stored_bytes(const WeightStore& store, const WeightStore::Stored& stored,
                     const LinearLayer& part) {
  return part.rows == stored.rows && part.columns == stored.columns &&
                 stored.form == WeightStore::Form::encoded
             ? stored.bytes
             : store
                   .size(stored, Slice{.rows = {.begin = 0, .count = part.rows},
                                       .columns = {.begin = 0, .count = part.columns}})
                   .bytes;
}

// Of several ranks the first chooses, by what it has.
Shard chooser(const EngineOptions& options) {
  return {.rank = 0, .degree = options.tensor_parallel.degree};
}

int64_t room_for(const std::vector<FormatChoice>& choices, const ModelConfig& config, DType dtype,
                 const EngineOptions& options) {
  ShapeLoader shapes(options.device, dtype, {.layers = layer_formats(choices), .density = 0.0},
                     chooser(options));
  return room_for_linear_layers(config, shapes, options, memory_of_rank(options));
}

std::vector<FormatChoice> choose_by_time(const ModelConfig& config, const WeightOrigin& origin,
                                         const std::vector<LayerKind>& kinds,
                                         const ChoiceOptions& how, const EngineOptions& options) {
  TuneCache cache(options.tune_cache);
  const std::string device_key = cuda_device_key(options.device);
  // What the meter holds of the device goes before anything asks how much memory is free.
  const auto measure = [&](const std::function<void(FormatMeter*)>& with) {
    if (!origin.loader) {
      return with(nullptr);
    }
    {
      LoadedFormatMeter meter(
          {.device = options.device, .loader = origin.loader, .most_tokens = how.most_tokens},
          cache);
      with(&meter);
    }
    try {
      cache.save();
    } catch (const Error& error) {
      if (options.log != nullptr) {
        options.log->warn("{}", error.what());  // the next load measures again
      }
    }
  };
  std::vector<FormatChoice> choices;
  choices.reserve(kinds.size());
  measure([&](FormatMeter* meter) {
    for (const LayerKind& kind : kinds) {
      choices.push_back(
          choose_by_time(kind, FormatRules::built_in(), how, meter, cache, device_key));
    }
  });
  if (total_bytes(choices) <= room_for(choices, config, origin.dtype, options)) {
    return choices;
  }
  measure([&](FormatMeter* meter) {
    for (FormatChoice& choice : choices) {
      add_smaller_layouts(choice, how, meter, cache, device_key);
    }
  });
  // Which formats there are changes a little of what a step takes: a second round sees that.
  constexpr int kRounds = 2;
  for (int round = 0; round < kRounds; ++round) {
    fit_into(room_for(choices, config, origin.dtype, options), choices);
  }
  return choices;
}

}  // namespace

WeightOrigin stored_origin(const WeightStore& store, DType dtype, const EngineOptions& options) {
  return {.dtype = dtype,
          .weight_of = [&store, dtype, device = options.device,
                        records = options.records](const JoinedLinear& layer) {
            std::vector<WeightStore::Stored> parts;
            for (const LinearLayer& part : layer.parts) {
              parts.push_back(store.get(part.module + ".weight"));
            }
            LayerWeight weight{.density = layer.density([&](const LinearLayer& part) {
                                 return store.density(part.module + ".weight");
                               }),
                               .stored = stored_format(store, parts, dtype, device),
                               .planned = planned_format(layer, {}),
                               .records = records,
                               .dtype = device.is_cuda() ? dtype : parts.front().dtype};
            // Others become 16 bits wide once they are joined.
            const bool keeps_bytes = !weight.stored.empty() && store.are_alike(parts);
            for (size_t i = 0; i < parts.size() && keeps_bytes; ++i) {
              weight.stored_bytes += stored_bytes(store, parts[i], layer.parts[i]);
            }
            return weight;
          }};
}

WeightOrigin random_origin(const RandomWeights& weights) {
  require_possible(weights);
  return {.dtype = weights.dtype, .weight_of = [&weights](const JoinedLinear& layer) {
            const RandomLinear first = weights.linear(layer.first_weight());
            const std::string format = planned_format(layer, first.format);
            return LayerWeight{.density = layer.density([&](const LinearLayer& part) {
                                 return 1.0 - weights.linear(part.module + ".weight").sparsity;
                               }),
                               .planned = format == kAutoFormat ? std::string()
                                          : format.empty()      ? std::string(dense_format().name())
                                                                : format,
                               .records = first.records,
                               .dtype = weights.dtype,
                               .zeros = places_of_zeros(weights, layer)};
          }};
}

std::vector<FormatChoice> select_formats(const ModelConfig& config, const WeightOrigin& origin,
                                         const EngineOptions& options) {
  const std::vector<LayerKind> kinds =
      layer_kinds(joined_linear_layers(config, chooser(options)), origin.weight_of);
  if (std::ranges::none_of(kinds, [](const LayerKind& k) { return k.weight.planned.empty(); })) {
    return {};
  }
  const std::vector<int64_t> tokens = decode_buckets(options);
  const int64_t largest = std::max(options.step_tokens, tokens.back());
  const ChoiceOptions how{
      .device = options.device, .tokens = tokens, .most_tokens = token_bucket(largest)};
  const bool measures = options.device.is_cuda() && !options.device.is_planned() &&
                        options.tuning == Tuning::measured && !options.deterministic;
  std::vector<FormatChoice> choices;
  if (measures) {
    choices = choose_by_time(config, origin, kinds, how, options);
  } else {
    for (const LayerKind& kind : kinds) {
      choices.push_back(choose_by_rules(kind, FormatRules::built_in(), how));
    }
  }
  if (options.log != nullptr) {
    for (const FormatChoice& choice : choices) {
      options.log->info("{}", to_string(choice, FormatRules::built_in()));
    }
  }
  return choices;
}

std::vector<FormatChoice> select_formats(const ModelConfig& config, const Checkpoint& checkpoint,
                                         const EngineOptions& options) {
  const WeightStore store(checkpoint);
  WeightOrigin origin =
      stored_origin(store, weight_dtype(checkpoint, options.device, options.dtype), options);
  origin.loader = [&](const LayerFormat& in) -> std::unique_ptr<WeightLoader> {
    if (options.progress) {
      options.progress(0, checkpoint.bytes());  // which may throw
    }
    return std::make_unique<CheckpointLoader>(
        checkpoint, options.device, options.dtype, LoadProgress(),
        WeightEncoding{.format = in.format, .threads = options.threads, .records = in.layout},
        chooser(options));
  };
  return select_formats(config, origin, options);
}

std::vector<FormatChoice> select_formats(const ModelConfig& config, const RandomWeights& weights,
                                         const EngineOptions& options) {
  WeightOrigin origin = random_origin(weights);
  origin.loader = [&](const LayerFormat& in) -> std::unique_ptr<WeightLoader> {
    return std::make_unique<RandomLoader>(options.device, in_format(weights, in), chooser(options));
  };
  return select_formats(config, origin, options);
}

}  // namespace sparsellm
