#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "models/config.h"

namespace sparsellm {

class JsonValue;  // kernels/base/json_reader.h

// One reader for each family of architectures, for models/architectures.cpp: everything of a
// config.json but the name of the architecture. They throw Error as models/config.h says.
ModelConfig read_llama_config(const JsonValue& json);
ModelConfig read_sparse_relu_llama_config(const JsonValue& json);
ModelConfig read_mistral_config(const JsonValue& json);
ModelConfig read_bamboo_config(const JsonValue& json);
ModelConfig read_qwen2_config(const JsonValue& json);
ModelConfig read_qwen3_config(const JsonValue& json);
ModelConfig read_minicpm_config(const JsonValue& json);
ModelConfig read_opt_config(const JsonValue& json);

// What the readers share.

inline constexpr int64_t kMaxWidth = 1 << 24;  // of a hidden state
inline constexpr int64_t kMaxHeads = 1 << 16;
inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// For a file without these keys.
struct CommonDefaults {
  int64_t bos = -1;  // none
  int64_t eos = -1;
  int64_t max_positions = 2048;
};
// What families have in common.
ModelConfig read_common_config(const JsonValue& json, const CommonDefaults& defaults);

// The keys that Llama shares with models of the same layers; not those of sliding windows, of
// biases of the attention and of a tied head.
struct RotaryDefaults {
  CommonDefaults common;
  bool needs_kv_heads = false;  // num_key_value_heads: else as many as num_attention_heads
  int64_t head_dim = 0;         // 0: hidden_size / num_attention_heads
};
ModelConfig read_rotary_config(const JsonValue& json, const RotaryDefaults& defaults);

Activation read_activation(const JsonValue& json, std::string_view key);

// A token id that is negative or null stands for none.
std::vector<int32_t> read_token_ids(const JsonValue& value, std::vector<int64_t> fallback,
                                    int64_t vocab_size);

// Throws Error for a head size that attention does not support.
int64_t checked_head_dim(const JsonValue& json, int64_t head_dim);
// The hidden size by the number of heads, which has to divide it.
int64_t divided_head_dim(const JsonValue& json, const ModelConfig& config);

// A switch of which the engine implements one position.
void require_boolean(const JsonValue& value, bool supported);
void require_absent(const JsonValue& value, std::string_view why);

}  // namespace sparsellm
