#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"

namespace sparsellm {

// One prompt to continue.
struct Request {
  std::vector<int32_t> prompt;  // token ids, at least one, BOS included if the model wants it
  SamplingParams sampling;
  std::optional<uint64_t> seed;  // of the sampling; a fresh one if absent
  int64_t max_tokens = -1;       // to generate; -1: until the context is full
  bool ignore_eos = false;       // EOS is never chosen

  // Called with the logits [vocabulary] that follow the token at `position` of prompt and
  // continuation, before the next token is chosen; valid during the call. Of the prompt only the
  // last position is reported, unless score_prompt is set.
  std::function<void(int64_t position, std::span<const float> logits)> on_logits;
  bool score_prompt = false;
};

enum class FinishReason : uint8_t {
  stop,       // EOS was chosen
  length,     // max_tokens, or the context is full
  cancelled,  // Engine::cancel
  error,      // a callback threw, or the model produced NaN
};
std::string_view name_of(FinishReason reason);

// A step forward in one request. The last event of a request carries `finish`; it may be without a
// token.
struct TokenEvent {
  int64_t request = 0;
  std::optional<int32_t> token;
  std::string_view text;  // whole UTF-8 characters that became certain; empty without a tokenizer
  std::optional<FinishReason> finish;
  std::string_view error;  // of FinishReason::error
};
using OnToken = std::function<void(const TokenEvent& event)>;

// A finished request.
struct Completion {
  std::vector<int32_t> tokens;  // generated; ends with the EOS that stopped it
  std::string text;
  FinishReason finish = FinishReason::error;
  std::string error;
};

}  // namespace sparsellm
