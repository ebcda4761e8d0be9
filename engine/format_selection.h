#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_options.h"
#include "models/config.h"
#include "models/format_choice.h"
#include "models/layer_kinds.h"
#include "models/storage/safetensors.h"
#include "models/weights/random_weights.h"
#include "models/weights/weight_loader.h"
#include "models/weights/weight_store.h"

namespace sparsellm {

// Where a model's weights come from, before they are loaded.
struct WeightOrigin {
  DType dtype = DType::f16;  // that a model on CUDA computes in
  WeightOfLayer weight_of;
  // A loader of the weights to EngineOptions::device, linear layers in this format. Nothing: none
  // is tried.
  std::function<std::unique_ptr<WeightLoader>(const LayerFormat& in)> loader = {};
};

// Of weights of a checkpoint: looks at headers, and at some rows of plain weights. `dtype` is that
// of the activations; device and records are the options'. The store outlives the origin. Without a
// loader.
WeightOrigin stored_origin(const WeightStore& store, DType dtype, const EngineOptions& options);
// Of random weights, which outlive the origin, too. Without a loader. Throws Error as
// require_possible() does.
WeightOrigin random_origin(const RandomWeights& weights);

// What "auto" as the format of a model's weights comes to: the choice of each kind of linear layers
// (models/format_choice.h), in the token buckets of decode steps, each of which counts the same.
// Layers whose format is planned keep it, and are among the choices; where all of them are, there
// is nothing to choose, and the result is empty. Of several ranks the first chooses for all, by its
// own shares.
//
// On CUDA with Tuning::measured times decide, from the cache file or from a trial, before anything
// else of the model is on the device; what does not fit beside all other weights, the tensors of a
// step and the requested KV cache, or else one context, is made smaller, and for that slower
// layouts are tried, too. Rules decide without it, with EngineOptions::deterministic, whose results
// must not depend on a measurement, and on the CPU. Writes the choices to the log. Throws Error.
std::vector<FormatChoice> select_formats(const ModelConfig& config, const WeightOrigin& origin,
                                         const EngineOptions& options);
// The same with trials of the weights that an engine loads, or makes.
std::vector<FormatChoice> select_formats(const ModelConfig& config, const Checkpoint& checkpoint,
                                         const EngineOptions& options);
std::vector<FormatChoice> select_formats(const ModelConfig& config, const RandomWeights& weights,
                                         const EngineOptions& options);

}  // namespace sparsellm
