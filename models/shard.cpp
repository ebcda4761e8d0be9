#include "models/shard.h"

#include "kernels/base/error.h"

namespace sparsellm {

std::string why_not_shared(const ModelConfig& config, int64_t degree) {
  const auto refuse = [&](int64_t count, const char* what) {
    return fmt::format("{} GPUs cannot share {} {}", degree, count, what);
  };
  if (degree < 1 || config.num_heads % degree != 0) {
    return refuse(config.num_heads, "attention heads");
  }
  if (config.num_kv_heads % degree != 0 && degree % config.num_kv_heads != 0) {
    return refuse(config.num_kv_heads, "heads of keys and values");
  }
  return {};
}

void require_shared(const ModelConfig& config, const Shard& shard) {
  const std::string reason = why_not_shared(config, shard.degree);
  require(reason.empty(), "{}", reason);
  require(shard.rank >= 0 && shard.rank < shard.degree, "rank {} of {}", shard.rank, shard.degree);
}

Range query_heads(const ModelConfig& config, const Shard& shard) {
  return shared_heads(config.num_heads, shard);
}

Range kv_heads(const ModelConfig& config, const Shard& shard) {
  return shared_heads(config.num_kv_heads, shard);
}

Range neurons(const ModelConfig& config, const Shard& shard) {
  return shared_elements(config.intermediate_size, shard);
}

Range vocabulary(const ModelConfig& config, const Shard& shard) {
  return shared_elements(config.vocab_size, shard);
}

}  // namespace sparsellm
