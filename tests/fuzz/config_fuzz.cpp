// The input is a generation_config.json (none if it is empty) and a config.json.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/rope.h"
#include "models/config.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tests/fuzz/input_parts.h"

namespace sparsellm::fuzz {
namespace {

bool in_range(std::optional<float> value, float max) {
  return !value || (*value >= 0.0f && *value <= max);
}

void check_defaults(const GenerationDefaults& defaults) {
  expect(
      !defaults.temperature || (*defaults.temperature >= 0 && std::isfinite(*defaults.temperature)),
      "a finite temperature of at least 0");
  expect(!defaults.top_k || *defaults.top_k >= 0, "a top_k of at least 0");
  expect(in_range(defaults.top_p, 1.0f) && defaults.top_p != 0.0f, "a top_p in (0, 1]");
  expect(in_range(defaults.min_p, 1.0f), "a min_p in [0, 1]");
}

void check_config(const ModelConfig& config) {
  for (const int64_t size :
       {config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers,
        config.num_heads, config.num_kv_heads, config.head_dim, config.max_positions}) {
    expect(size >= 1 && size <= INT32_MAX, "positive sizes whose products fit");
  }
  expect(config.num_heads % config.num_kv_heads == 0, "query heads in groups");
  expect(config.head_dim % 8 == 0 && config.head_dim <= 256, "a head size that the kernels take");
  expect(std::isfinite(config.norm_epsilon) && config.norm_epsilon > 0, "a positive epsilon");
  expect(std::isfinite(config.rope_theta) && config.rope_theta >= 1, "a RoPE base");
  expect(std::isfinite(config.rope_scaling.factor) && config.rope_scaling.factor >= 1,
         "a RoPE factor");
  for (float frequency :
       rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)) {
    expect(std::isfinite(frequency), "finite frequencies");
  }
  expect(config.window >= 0 && config.window < config.max_positions, "a window inside the context");
  for (const float scale : {config.embedding_scale, config.residual_scale, config.logit_scale}) {
    expect(std::isfinite(scale) && scale > 0, "factors above 0");
  }
  const ActivationSparsity& sparsity = config.activation_sparsity;
  const bool predicts = sparsity.mode == ActivationSparsity::Mode::predict;
  expect(std::ssize(sparsity.alphas) == (predicts ? config.num_layers : 0), "an alpha a layer");
  expect(std::ranges::all_of(sparsity.alphas,
                             [](std::optional<float> alpha) {
                               return !alpha || (std::isfinite(*alpha) && *alpha > 0);
                             }),
         "alphas above 0");
  expect(!predicts || std::ranges::any_of(sparsity.alphas,
                                          [](std::optional<float> alpha) { return !!alpha; }),
         "an alpha of a layer at least");
  const auto is_token = [&](int32_t id) { return id >= 0 && id < config.vocab_size; };
  expect(!config.bos_token_id || is_token(*config.bos_token_id), "BOS inside the vocabulary");
  expect(std::all_of(config.eos_token_ids.begin(), config.eos_token_ids.end(), is_token),
         "EOS inside the vocabulary");
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  const auto parts = split_parts(input, 2);
  folder.write_unless_empty("generation_config.json", parts[0]);
  folder.write("config.json", parts[1]);
  check_defaults(read_generation_defaults(folder.path()));
  check_config(read_model_config(folder.path()));
}

}  // namespace sparsellm::fuzz
