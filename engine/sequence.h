#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {

// A request on its way through the engine.
struct Sequence {
  int64_t id = 0;
  Request request;
  OnToken on_token;
  uint64_t seed = 0;
  int64_t max_length = 0;  // of prompt and continuation

  std::vector<int32_t> tokens;  // prompt and continuation
  int64_t computed = 0;         // how many of them have their keys and values in the cache
  std::vector<int32_t> pages;   // of the KV cache, in the order of the positions
  std::optional<IncrementalDecoder> text;  // absent without a tokenizer
  std::optional<FinishReason> finish;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  bool in_decode() const { return computed >= prompt_length(); }
};

}  // namespace sparsellm
