#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "models/config.h"
#include "models/decoder_layer.h"
#include "tools/bench/engine.h"

namespace sparsellm {

// The decoder blocks of a model on its device, one at a time.
struct LayerSource {
  ModelConfig config;
  Device device;
  std::string pattern;                              // of zeros, pattern_name()
  std::function<DecoderLayer(int64_t block)> load;  // throws Error
};

// With the weights that load_bench_engine() would load: those of a checkpoint, or random ones.
// Throws Error.
LayerSource open_layers(const BenchModelArgs& args);

// Whether such a model may have weights in a sparse format: in the requested one, or as stored.
// Throws Error.
bool may_be_sparse(const BenchModelArgs& args);

}  // namespace sparsellm
