#pragma once

#include <cstdint>
#include <string_view>

#include "models/config.h"
#include "tokenizer/tokenizer.h"
#include "tools/run/prompt_lines.h"

namespace sparsellm {

// Whether lines of results can be what a batch writes for its prompts. The tokens of a line are
// delivered once more, which gives its text and the reason of its end; written again it has to be
// the same bytes. So all is found but a line of other tokens that could have been drawn, other
// log-probabilities in the same order, and what an error says that is not the prompt's.
class ResultCheck {
 public:
  // All of them outlive this object. `context_size` is the engine's.
  ResultCheck(const Tokenizer& tokenizer, const ModelConfig& config, int64_t context_size,
              bool parse_special);

  // Throws Error that says how `line` differs. `number` is the line of the prompt.
  void require_result(std::string_view line, const PromptLine& prompt, int64_t number) const;

 private:
  void require_error(std::string_view line, const PromptLine& prompt, int64_t number) const;

  const Tokenizer* tokenizer_;
  const ModelConfig* config_;
  int64_t context_size_;
  bool parse_special_;
};

}  // namespace sparsellm
