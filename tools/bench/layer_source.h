#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/decoder_layer.h"
#include "tools/bench/engine.h"

namespace sparsellm {

// Blocks of a model whose layers have the same shapes, formats and shares of zeros: one of them
// stands for all.
struct AlikeBlocks {
  int64_t block = 0;  // the one in their middle
  int64_t count = 0;
};

// The decoder blocks of a model on its device, one at a time.
struct LayerSource {
  ModelConfig config;
  Device device;
  std::string pattern;  // of zeros, pattern_name()
  // All blocks; those of a checkpoint count as alike, and those of random weights are so unless a
  // plan says otherwise.
  std::vector<AlikeBlocks> alike;
  std::function<DecoderLayer(int64_t block)> load;  // throws Error
};

// With the weights that load_bench_engine() would load: those of a checkpoint, or random ones.
// Throws Error.
LayerSource open_layers(const BenchModelArgs& args);

// Whether such a model may have weights in a sparse format: in the requested one, or as stored.
// Throws Error.
bool may_be_sparse(const BenchModelArgs& args);

}  // namespace sparsellm
