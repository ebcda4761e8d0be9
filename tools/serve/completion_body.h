#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/run/prompt.h"

namespace sparsellm {

inline constexpr size_t kMaxBodyPrompts = 1024;

// The body of POST /v1/completions.
struct CompletionBody {
  // Texts, or token ids.
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  Prompt common;                // what holds for each of them
  bool has_max_tokens = false;  // not that of the defaults
  std::optional<std::string> model;
  bool stream = false;
  bool include_usage = false;  // a last chunk with the numbers of tokens
};

// `text` is hostile. `defaults` are for fields that are absent or null. Fields that change nothing
// of an answer are passed over ("user"); any other that is not known is an Error, which names it,
// and so are values out of range, as far as they can be told without a model.
CompletionBody read_completion_body(std::string_view text, const Prompt& defaults);

}  // namespace sparsellm
