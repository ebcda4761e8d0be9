#include "tools/bench/layer_source.h"

#include <algorithm>
#include <utility>

#include "engine/format_selection.h"
#include "engine/resolve_options.h"
#include "models/build_decoder.h"
#include "models/linear_layers.h"
#include "models/storage/model_file.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// Kinds of layers that have formats.
std::vector<AlikeBlocks> alike_by_choices(const ModelConfig& config,
                                          const std::vector<FormatChoice>& choices,
                                          const Shard& shard) {
  std::vector<LayerKind> kinds;
  kinds.reserve(choices.size());
  for (const FormatChoice& choice : choices) {
    kinds.push_back(choice.kind);
  }
  return alike_blocks(joined_linear_layers(config, shard), kinds);
}

}  // namespace

LayerSource open_layers(const BenchModelArgs& args, const BenchEngineSize& size, int ranks,
                        spdlog::logger* log) {
  EngineOptions options = bench_engine_options(args, size);
  options.tensor_parallel = TensorParallel();  // the devices of others are of no interest
  options.tensor_parallel.degree = ranks;
  const Shard shard{.rank = 0, .degree = ranks};
  options.log = log;
  LayerSource source{.config = config_to_run(read_bench_config(args), options),
                     .device = options.device,
                     .pattern = pattern_name(args),
                     .alike = {},
                     .load = {}};
  if (!args.config.empty()) {
    RandomWeights weights = random_weights(args, options);
    source.choices = select_formats(source.config, weights, options);
    weights = in_formats(std::move(weights), layer_formats(source.choices));
    const std::vector<JoinedLinear> layers = joined_linear_layers(source.config, shard);
    source.alike = alike_blocks(layers, layer_kinds(layers, random_origin(weights).weight_of, 0.0));
    source.load = [weights, config = source.config, device = source.device, shard](int64_t block) {
      RandomLoader loader(device, weights, shard);
      return build_layer(config, block, loader);
    };
    return source;
  }
  // std::function copies.
  const std::shared_ptr<const Checkpoint> checkpoint =
      std::make_shared<const Checkpoint>(args.model.model);
  if (options.verify) {
    ModelFile(*checkpoint).verify([](int64_t, int64_t) {});
  }
  WeightEncoding encoding{
      .format = options.weight_format, .threads = options.threads, .records = options.records};
  const int64_t blocks = source.config.num_layers;
  source.alike = {{.block = blocks / 2, .count = blocks}};
  if (encoding.format == kAutoFormat) {
    source.choices = select_formats(source.config, *checkpoint, options);
    source.alike = alike_by_choices(source.config, source.choices, shard);
    encoding.format.clear();
    encoding.layers = layer_formats(source.choices);
  }
  source.load = [checkpoint, encoding, options, config = source.config, shard](int64_t block) {
    CheckpointLoader loader(*checkpoint, options.device, options.dtype, {}, encoding, shard);
    return build_layer(config, block, loader);
  };
  return source;
}

bool may_be_sparse(const BenchModelArgs& args) {
  const std::string& format = args.model.weight_format;
  if (format != "stored") {
    return format != "dense";
  }
  if (!args.config.empty()) {  // random weights are stored nowhere
    const RandomLinears planned = random_weights(args, engine_options(args.model, {})).planned;
    return std::any_of(planned.begin(), planned.end(),
                       [](const auto& linear) { return linear.second.format != "dense"; });
  }
  const Checkpoint checkpoint(args.model.model);
  return !ModelFile(checkpoint).weight_names().empty();
}

}  // namespace sparsellm
