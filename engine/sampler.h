#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sparsellm {

// Added to the logit of a token, which is never chosen if it is -infinity.
struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;
};

// What has happened to a model that gives other logits: an overflow, or damaged weights.
inline constexpr std::string_view kLogitsNotFinite = "the model's logits contain NaN or infinity";

// How the next token is chosen. In this order: logit_bias is added; tokens that stand in prompt or
// continuation have their logit divided (if positive, else multiplied) by repetition_penalty
// (Keskar et al. 2019, section 4.1); tokens of the continuation lose frequency_penalty for each
// time they occur and presence_penalty once (OpenAI's definition); the logits are divided by the
// temperature; the top_k largest are kept, of these the smallest set with probability >= top_p, of
// these the ones with at least min_p times the probability of the largest; one is drawn. (Hugging
// Face's order; llama.cpp applies the temperature last.)
struct SamplingParams {
  float temperature = 0.0f;                // 0: greedy, the largest logit, the smaller id if equal
  int32_t top_k = 0;                       // 0: all
  float top_p = 1.0f;                      // in (0, 1]
  float min_p = 0.0f;                      // in [0, 1]
  float repetition_penalty = 1.0f;         // > 0; 1: none
  float frequency_penalty = 0.0f;          // finite
  float presence_penalty = 0.0f;           // finite
  std::vector<LogitBias> logit_bias = {};  // finite or -infinity; no token twice

  bool has_penalties() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

// What the penalties look at: prompt and continuation so far.
struct TokenHistory {
  std::span<const int32_t> tokens;
  int64_t prompt_length = 0;  // the first of them are the prompt; 0 to tokens.size()
};

// Throws Error naming the first value that is out of range. Whether the tokens of logit_bias are in
// the vocabulary is not looked at.
void validate(const SamplingParams& params);

// The id chosen from logits [vocabulary] by valid parameters. `banned` ids have probability 0. The
// draw is a pure function of `seed` and `index`, the place of the token in its request, whatever
// else is sampled and in whatever order. Ids outside the vocabulary, in logit_bias, history and
// `banned`, are passed over. Throws Error if a logit is NaN or infinite, or no token is left.
int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                     const TokenHistory& history, std::span<const int32_t> banned, uint64_t seed,
                     int64_t index);

// The seed of a request's sample: sample 0 has the request's own.
uint64_t sample_seed(uint64_t seed, int32_t sample);

}  // namespace sparsellm
