#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/log_probability.h"
#include "engine/sequence.h"

namespace sparsellm {

// What a step chose for a sequence.
struct Choice {
  int32_t token = 0;
  std::optional<TokenLogProbs> log_probs;
  std::string error;  // why there is no token; empty if there is
};

// Calls of a request's listener. A listener that throws ends its own request.

// The next token, or the end of a sequence whose token could not be chosen. Sets `finish` if the
// token is one of `eos`, or meets another condition to stop.
void deliver(Sequence& sequence, const Choice& choice, std::span<const int32_t> eos);

// The end of a sequence, without another token; nothing if it has ended.
void finish(Sequence& sequence, FinishReason reason, std::string_view error = {});

// What the exception being handled says.
std::string current_error() noexcept;

}  // namespace sparsellm
