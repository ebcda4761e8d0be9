#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/penalties.h"
#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "kernels/log_probs.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {

// What was submitted; shared by the samples of a request.
struct Submission {
  int64_t id = 0;
  Request request;
  OnToken on_token;
};

// One sample of a request on its way through the engine.
struct Sequence {
  int64_t order = 0;  // of arrival; no two sequences have the same
  std::shared_ptr<const Submission> submission;
  int32_t sample = 0;
  uint64_t seed = 0;
  int64_t max_length = 0;    // of prompt and continuation
  bool looks_ahead = false;  // a row may be planned whose token is not known yet

  // Prompt and continuation, as far as they are known; empty until the sequence is admitted, since
  // many that wait may have the same long prompt.
  std::vector<int32_t> tokens;
  // On a device that adjusts its logits: those of `tokens`, up to the latest planned row.
  std::optional<LogitAdjustments> adjustments;
  std::optional<FinishReason> finish;
  bool started = false;                         // rows have been planned
  std::optional<IncrementalDecoder> text;       // absent without a tokenizer
  StopMatcher stops{{}};                        // looks at texts of the submission
  std::vector<TokenLogProbs> prompt_log_probs;  // of prompt[1], prompt[2], ...
  int64_t reported = 0;  // positions of the prompt whose logits are, or will be, looked at

  // The scheduler's part.
  std::vector<int32_t> pages;   // of the KV cache, in the order of the positions
  int64_t released = 0;         // of them, at the front, that no later row sees
  int64_t planned = 0;          // positions whose keys and values are computed or enqueued
  int64_t planned_before = 0;   // the most that `planned` has been: what lies below is recomputed
  int64_t pending = 0;          // tokens after `tokens` that steps in flight choose
  int64_t choice = 0;           // where the latest of these steps has the last of these tokens
  int64_t steps_in_flight = 0;  // that have rows of this sequence

  const Request& request() const { return submission->request; }
  // Whether its logits are used for more than the choice of a token, or are adjusted before it.
  bool uses_logits() const {
    const Request& r = request();
    return r.on_logits || r.log_probs || adjusts_logits();
  }
  bool adjusts_logits() const {
    const SamplingParams& sampling = request().sampling;
    return sampling.has_penalties() || !sampling.logit_bias.empty();
  }
  // Its logits go to the host also where a device samples: they are shown, or the device has no
  // room for the request's log-probabilities or adjustments.
  bool samples_on_host() const {
    const Request& r = request();
    return r.on_logits || r.log_probs.value_or(0) > kMaxDeviceLogProbs ||
           LogitAdjustments::most(r.sampling, prompt_length(), max_length) >= kMaxRowAdjustments;
  }
  int64_t prompt_length() const { return static_cast<int64_t>(request().prompt.size()); }
  int64_t known_length() const {
    return tokens.empty() ? prompt_length() : static_cast<int64_t>(tokens.size());
  }
  int64_t length() const { return known_length() + pending; }
  // Tokens from this position on count as generated, in whatever pass they are computed.
  int64_t first_generated() const { return request().decode_from.value_or(prompt_length()); }

  // Positions whose keys and values are wanted; the last token of all needs none.
  int64_t goal() const {
    return length() == max_length && length() > prompt_length() ? length() - 1 : length();
  }
  // The next row is of a generated token and was not computed before: it is planned alone.
  bool in_decode() const {
    return planned >= first_generated() && planned >= planned_before && planned < goal();
  }
  bool wants_prompt_logits() const {
    const bool log_probs = request().prompt_log_probs && sample == 0;
    return (request().score_prompt || log_probs) && reported < prompt_length();
  }
};

}  // namespace sparsellm
