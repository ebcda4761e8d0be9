#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "models/activation_sparsity.h"
#include "models/neuron_counts.h"
#include "tokenizer/tokenizer.h"
#include "tools/run/prompt.h"

namespace sparsellm {

// What a request's events add up to.
class Results {
 public:
  explicit Results(int32_t samples);

  // If it throws, the sample has not finished.
  void add(const TokenEvent& event);
  bool finished() const { return unfinished_ == 0; }  // all samples
  // Of the first sample that ended with FinishReason::error; empty if none did.
  std::string_view error() const;
  const std::vector<Completion>& samples() const { return samples_; }

 private:
  std::vector<Completion> samples_;
  std::vector<bool> has_finished_;  // by sample
  int32_t unfinished_;
};

// One line of JSON, the same for a single prompt and in a file of results:
//   {"id": ..., "text": ..., "token_ids": [...], "finish_reason": "stop"}
//   id            JSON; left out if empty; null for a line whose id cannot be read
//   prompt        (or prompt_ids) with `echo`
//   prompt_logprobs, logprobs
//                 if requested, an array: of the prompt's tokens from the second on, of the
//                 generated ones: {"id": 7, "token": " a", "logprob": -0.5, "top_logprobs": [...]}
//   activation_sparsity
//                 of a model with it, for a single prompt: {"mode": "predict", "skipped": 0.43,
//                 "active": 0.21}, shares of the neurons in generated tokens; null without any
//   samples       with several of them instead of text to logprobs: an array of objects with these
struct ResultNeurons {
  ActivationSparsity::Mode mode = ActivationSparsity::Mode::off;
  NeuronCounts counts = {};
};
std::string result_json(std::string_view id, const Tokenizer& tokenizer, const Prompt& prompt,
                        const Results& results, const ResultNeurons& neurons = {});

// The error of a line that there is no memory for.
inline constexpr char kOutOfMemory[] = "out of memory";

// {"id": ..., "error": ...}
std::string error_json(std::string_view id, std::string_view error);

// How the lines that these two write begin.
std::string result_prefix(std::string_view id);
std::string error_prefix(std::string_view id);

}  // namespace sparsellm
