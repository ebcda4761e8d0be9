#include "tools/bench/layer_source.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/build_decoder.h"
#include "models/linear_layers.h"
#include "models/storage/model_file.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"

namespace sparsellm {
namespace {

std::vector<AlikeBlocks> alike_blocks(const ModelConfig& config, const RandomLinears& planned) {
  std::map<int64_t, std::vector<RandomLinear>> layers;  // by block
  for (const LinearLayer& layer : linear_layers(config)) {
    layers[layer.block].push_back(planned.at(layer.module));
  }
  std::vector<std::vector<int64_t>> groups;
  for (const auto& [block, of_block] : layers) {
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&, &of_block = of_block](const auto& others) {
          return layers.at(others.front()) == of_block;
        });
    (group != groups.end() ? *group : groups.emplace_back()).push_back(block);
  }
  std::vector<AlikeBlocks> alike;
  alike.reserve(groups.size());
  for (const std::vector<int64_t>& group : groups) {
    alike.push_back({.block = group[group.size() / 2], .count = std::ssize(group)});
  }
  return alike;
}

}  // namespace

LayerSource open_layers(const BenchModelArgs& args) {
  const EngineOptions options = engine_options(args.model, {});
  LayerSource source{.config = read_bench_config(args),
                     .device = options.device,
                     .pattern = pattern_name(args),
                     .alike = {},
                     .load = {}};
  const int64_t blocks = source.config.num_layers;
  source.alike = {{.block = blocks / 2, .count = blocks}};
  if (!args.config.empty()) {
    const RandomWeights weights = random_weights(args, options);
    if (!weights.planned.empty()) {
      source.alike = alike_blocks(source.config, weights.planned);
    }
    source.load = [weights, config = source.config, device = source.device](int64_t block) {
      RandomLoader loader(device, weights);
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
  source.load = [checkpoint, options, config = source.config](int64_t block) {
    CheckpointLoader loader(*checkpoint, options.device, options.dtype, {},
                            {.format = options.weight_format, .threads = options.threads});
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
