#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tools/run/prompt.h"

namespace sparsellm {

// A line of a file of prompts, one JSON object a line:
//   {"id": "king", "prompt": "Once upon a time", "temperature": 0, "stop": ["\n"]}
//   prompt       text; or prompt_ids, an array of token ids
//   id           an integer or a string of at most kMaxIdBytes; default: the number of the line
//   max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty,
//   presence_penalty, logit_bias (object: token id -> number), seed (-1: a fresh one),
//   ignore_eos, stop (text or array of texts), stop_token_ids, n (samples), logprobs, echo
// A null counts as a missing field; any other field is an error.
struct PromptLine {
  std::string id;  // JSON: an integer, or a string in quotes; "null" if it cannot be read
  Prompt prompt;
  std::string error;  // what is wrong with the line: one line of text; empty: nothing
};

inline constexpr size_t kMaxIdBytes = 256;

// The id of a line that has none that can be read; no other line can have it.
inline constexpr char kNoId[] = "null";

// `text` is hostile: everything that is wrong with it, also sampling parameters out of range or
// more than there is memory for, ends up in `error`. Fields that are not there are taken from
// `defaults`.
PromptLine read_prompt_line(std::string_view text, int64_t number, const Prompt& defaults);

// The id alone; empty if the line has none that can be read, or is not a JSON object.
std::optional<std::string> read_prompt_id(std::string_view text, int64_t number);

// Nothing but spaces.
bool is_blank(std::string_view line);

}  // namespace sparsellm
