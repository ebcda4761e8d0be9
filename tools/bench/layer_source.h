#pragma once

#include <spdlog/fwd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/decoder_layer.h"
#include "models/format_choice.h"
#include "models/layer_kinds.h"
#include "tools/bench/engine.h"

namespace sparsellm {

// The decoder blocks of a model on its device, one at a time.
struct LayerSource {
  ModelConfig config;
  Device device;
  std::string pattern;  // of zeros, pattern_name()
  // All blocks. Random weights that are alike have the same densities; those of a checkpoint count
  // as alike, unless "auto" has chosen different formats for them, or may have.
  std::vector<AlikeBlocks> alike;
  std::function<DecoderLayer(int64_t block)> load;  // throws Error
  std::vector<FormatChoice> choices = {};           // of the weight format "auto"
};

// With the weights that load_bench_engine() would load: those of a checkpoint, or random ones; of
// several ranks, what rank 0 has of them, on its device. The weight format "auto" is that of an
// engine of this size. Throws Error.
LayerSource open_layers(const BenchModelArgs& args, const BenchEngineSize& size, int ranks = 1,
                        spdlog::logger* log = nullptr);

// Whether such a model may have weights in a sparse format: in the requested one, or as stored.
// Throws Error.
bool may_be_sparse(const BenchModelArgs& args);

}  // namespace sparsellm
