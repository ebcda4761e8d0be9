#pragma once

#include <span>
#include <vector>

#include "engine/sampler.h"

namespace sparsellm {

// Whether adjusted_logits() can differ from the logits.
bool adjusts_logits(const SamplingParams& params, const TokenHistory& history);

// The logits [vocabulary] after logit_bias, repetition, frequency and presence penalty, as
// SamplingParams defines them. Ids outside the vocabulary are passed over. Infinite logits stay as
// they are; finite ones stay finite, at the largest float where one is exceeded. Time and memory
// are linear in vocabulary and history.
std::vector<float> adjusted_logits(std::span<const float> logits, const SamplingParams& params,
                                   const TokenHistory& history);

}  // namespace sparsellm
