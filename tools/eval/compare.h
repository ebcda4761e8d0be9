#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/engine.h"
#include "kernels/base/error.h"
#include "tools/eval/estimate.h"
#include "tools/eval/scored_request.h"
#include "tools/eval/text_windows.h"

namespace sparsellm {

struct ComparisonOptions {
  int64_t context = 512;
  PerplexityProtocol protocol = PerplexityProtocol::windows;
  ScoredRows rows = ScoredRows::prefill;
  int threads = 0;  // that compute divergences; 0: usable_cores()
  // Called between steps with the tokens scored by both models, and all that will be.
  std::function<void(int64_t, int64_t)> progress = [](int64_t, int64_t) {};
};

// A loaded model, and what errors call it.
struct ComparedModel {
  std::string name;
  Engine& engine;
};

struct TokenProbability {
  int32_t id = 0;
  std::string bytes;  // what it stands for; a control token's name
  double probability = 0.0;
};

// A place in the text and what both models say about the token there.
struct ComparedToken {
  double kl = 0.0;       // nats
  int64_t position = 0;  // among the tokens of the text, from 0
  std::string context;   // the end of what the models had read of the text, at most 80 bytes
  int32_t id = 0;        // the token of the text
  std::string bytes;
  double probability_a = 0.0;  // of that token
  double probability_b = 0.0;
  TokenProbability top_a;  // the likeliest token of each model
  TokenProbability top_b;
};

// Figures over all scored tokens of a text; KL is KL(p || q) in nats, with p the distribution of A.
// Everything is finite.
struct Comparison {
  int64_t tokens = 0;  // scored
  int64_t windows = 0;
  Estimate kl;  // mean
  double kl_median = 0.0;
  double kl_99 = 0.0;  // quantiles
  double kl_999 = 0.0;
  double kl_max = 0.0;
  double top1_agreement = 0.0;  // in per cent: the likeliest token is the same
  double top1_gap_max = 0.0;    // most that A's largest logit is above its logit of B's likeliest
  Estimate perplexity_a;
  Estimate perplexity_b;
  Estimate perplexity_ratio;  // B / A; its standard error is that of paired samples
  ComparedToken worst;        // with the largest KL, the first of equals
  double seconds = 0.0;
};

// Tokens of one step and windows at once with which both engines should be loaded (step_tokens and
// max_requests), so that the logits which are held fit 1 GiB and the steps are full.
struct ComparisonBatch {
  int64_t step_tokens = 0;
  int64_t windows = 0;
};
ComparisonBatch comparison_batch(int64_t vocab_size, int64_t context,
                                 ScoredRows rows = ScoredRows::prefill);

// Scores the same windows of `text` with both models, step by step, and compares their
// distributions of every scored token. Sums are taken in the order of the text: the same logits
// give the same bits, whatever the steps. Holds the logits of a step of each. Throws Error if the
// vocabularies differ in size or the tokenizers in the ids of this text, if the text is shorter
// than one window, and for logits that are not finite.
Comparison compare_models(const ComparedModel& a, const ComparedModel& b, const std::string& text,
                          const ComparisonOptions& options);

// Runs body(); puts the name in front of its Error.
template <class Body>
auto naming(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const DeviceLost& error) {
    throw DeviceLost(fmt::format("{}: {}", name, error.what()));
  } catch (const Error& error) {
    fail("{}: {}", name, error.what());
  }
}

}  // namespace sparsellm
