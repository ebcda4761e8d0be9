#pragma once

#include "engine/engine.h"
#include "tools/run/prompt.h"

namespace sparsellm {

struct ContinuationOptions {
  bool parse_special = false;  // control tokens written in the prompt count as such
  bool json = false;           // one JSON object at the end instead of the text as it is made
};

// Continues a prompt on stdout until its end or Ctrl-C. Several samples are printed one after the
// other, each after a line "--- sample 1 of 4 ---". Throws Error for what is wrong with the
// request, and if stdout cannot be written.
void continue_prompt(Engine& engine, const Prompt& prompt, const ContinuationOptions& options);

}  // namespace sparsellm
