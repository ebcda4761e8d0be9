#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/engine.h"

namespace sparsellm::testing {

// Compares a greedy continuation that another engine generated with the logits of `reference`, an
// engine of the same model: each of the request's max_tokens tokens has a logit within `tolerance`
// of the largest that it could choose. With ignore_eos, that leaves out EOS and needs all of
// max_tokens. Of the request, prompt, max_tokens and ignore_eos count. Returns what is wrong, or
// nothing.
std::string check_greedy(Engine& reference, const Request& request, std::span<const int32_t> tokens,
                         double tolerance);

}  // namespace sparsellm::testing
