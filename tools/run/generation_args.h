#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config.h"
#include "tools/cli/cli_fwd.h"
#include "tools/run/prompt.h"

namespace sparsellm {

// The flags that say how a prompt is continued. Names and defaults are llama.cpp's where it has
// them.
struct GenerationArgs {
  int64_t max_tokens = -1;
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<LogitBias> logit_bias;
  int64_t seed = -1;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  int32_t samples = 1;
  std::optional<int32_t> log_probs;
  bool echo = false;
};
void add_generation_args(CLI::App& app, GenerationArgs& args);

// A prompt that has everything but its text. Throws UsageError for values out of range.
Prompt make_prompt(const GenerationArgs& args, const GenerationDefaults& defaults);

// "15043-1.5": a token id and what is added to its logit, with its sign. Throws UsageError.
LogitBias parse_logit_bias(const std::string& text);

}  // namespace sparsellm
