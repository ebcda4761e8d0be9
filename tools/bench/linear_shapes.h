#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/weights/shares.h"

namespace sparsellm {

// A kind of linear layer of a model, joined as the engine joins them (models/linear_layers.h).
struct LinearShape {
  // "head", "router", or kind_of() the first of the joined layers: "self_attn.q_proj".
  std::string name;
  int64_t out = 0;
  int64_t in = 0;
  int64_t count = 0;    // in the model
  bool pruned = false;  // by the usual methods, which leave routers and the head as they are

  friend bool operator==(const LinearShape&, const LinearShape&) = default;
};

// Those of the whole model, or what a rank has of them.
std::vector<LinearShape> linear_shapes(const ModelConfig& config, const Shard& shard = {});

// Of a file that is in the format of config.json: of what the engine runs, and of Qwen2 and
// Mixtral, which it does not. Throws Error for other architectures and for a file that is not
// right.
std::vector<LinearShape> linear_shapes(const std::filesystem::path& config_file);

// What a rank has of these layers under tensor parallelism (models/shard.h), where it has something
// of one: q, k, v, gate, up and the head are split by rows, the output of attention and down by
// columns; routers stay whole. Throws Error for a degree that the model does not allow.
std::vector<LinearShape> linear_shard_shapes(const std::filesystem::path& config_file,
                                             const Shard& shard);

}  // namespace sparsellm
