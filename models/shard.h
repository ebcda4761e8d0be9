#pragma once

#include <cstdint>
#include <string>

#include "models/config.h"
#include "models/weights/shares.h"

namespace sparsellm {

// Why that many ranks cannot share a model, in one line: "3 GPUs cannot share 40 attention heads".
// Empty if they can: the degree divides the attention heads; it divides the heads of keys and
// values or is a multiple of them. All else may be shared unevenly.
std::string why_not_shared(const ModelConfig& config, int64_t degree);
// Throws Error for that reason, and for a rank that there is not.
void require_shared(const ModelConfig& config, const Shard& shard);

// What a rank of a degree has for which there is no such reason.
Range query_heads(const ModelConfig& config, const Shard& shard);
Range kv_heads(const ModelConfig& config, const Shard& shard);
Range neurons(const ModelConfig& config, const Shard& shard);
// Rows of the output projection: of the logits, the columns that the rank computes.
Range vocabulary(const ModelConfig& config, const Shard& shard);

}  // namespace sparsellm
