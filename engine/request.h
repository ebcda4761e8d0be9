#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/log_probability.h"
#include "engine/sampler.h"

namespace sparsellm {

inline constexpr int32_t kMaxSamples = 1024;
// Every token is compared with every one of them.
inline constexpr size_t kMaxStops = 64;
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr size_t kMaxStopTokens = 1024;

// One prompt to continue.
struct Request {
  std::vector<int32_t> prompt;  // token ids, at least one, BOS included if the model wants it
  SamplingParams sampling = {};
  std::optional<uint64_t> seed = {};  // of the sampling; a fresh one if absent
  // To generate; -1: until the context, or the whole KV cache, is full.
  int64_t max_tokens = -1;
  // Continuations, at most kMaxSamples; they share the prompt's part of the KV cache.
  int32_t samples = 1;

  bool ignore_eos = false;  // EOS is never chosen
  // End the continuation as EOS does; their text is not shown. At most kMaxStopTokens.
  std::vector<int32_t> stop_token_ids = {};
  // Texts that end the continuation where the first of them is complete, also across token
  // borders; neither they nor what follows is shown. At most kMaxStops of 1 to kMaxStopBytes of
  // UTF-8.
  std::vector<std::string> stop = {};
  bool show_special_tokens = false;  // control tokens have a text

  // Reports the log-probability of every generated token and this many of the likeliest tokens at
  // its place (0 to kMaxTopLogProbs), by the model's logits, before penalties, bias and
  // temperature.
  std::optional<int32_t> log_probs = {};
  bool prompt_log_probs = false;  // of the prompt's tokens too; only with log_probs

  // Called with the logits [vocabulary] that follow the token at `position` of prompt and
  // continuation, before the next token is chosen; valid during the call. Of the prompt only the
  // last position is reported, unless score_prompt is set. Only with samples = 1.
  std::function<void(int64_t position, std::span<const float> logits)> on_logits = {};
  bool score_prompt = false;  // only with on_logits

  // Called from Engine::step() once, when the first of its samples begins to be computed. If it
  // throws, that sample ends with FinishReason::error.
  std::function<void()> on_start = {};

  // Teacher forcing, in [1, length of the prompt]: tokens of the prompt from this index on are
  // computed as if they had been generated, one a step, and samples do not share them.
  std::optional<int64_t> decode_from = {};
};

enum class FinishReason : uint8_t {
  stop,       // EOS, one of stop_token_ids or one of the stop texts
  length,     // max_tokens, or the context is full
  cancelled,  // Engine::cancel
  error,      // a callback threw, or the logits are NaN or infinite
};
std::string_view name_of(FinishReason reason);

// A step forward in one sample of a request. The last event of a sample carries `finish`; it may
// be without a token. A listener that throws ends its sample with FinishReason::error. If it throws
// at the last event, which may be lost then, it gets one more, with that error, and what it throws
// at this one is dropped.
struct TokenEvent {
  int64_t request = 0;
  int32_t sample = 0;  // 0 to Request::samples - 1
  std::optional<int32_t> token = {};
  // Whole UTF-8 characters that became certain, not always those of `token`; empty without a
  // tokenizer.
  std::string_view text = {};
  const TokenLogProbs* log_probs = nullptr;  // of `token`, if asked for
  // Of prompt[1], prompt[2], ..., if asked for: with the first event of sample 0.
  std::span<const TokenLogProbs> prompt_log_probs = {};
  std::optional<FinishReason> finish = {};
  std::string_view error = {};  // of FinishReason::error
};
using OnToken = std::function<void(const TokenEvent& event)>;

// A finished sample of a request.
struct Completion {
  size_t request = 0;  // index among the requests
  int32_t sample = 0;
  std::vector<int32_t> tokens;  // generated; with the EOS or the end of the text that stopped it
  std::string text;
  std::vector<TokenLogProbs> log_probs;  // of `tokens`, if asked for
  std::vector<TokenLogProbs> prompt_log_probs;
  FinishReason finish = FinishReason::error;
  std::string error;

  void add(const TokenEvent& event);  // one of this sample
};

}  // namespace sparsellm
