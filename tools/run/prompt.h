#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>

#include "engine/request.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {

// Bounds of what flags and JSON fields may ask for; the engine has its own where it knows better.
inline constexpr int64_t kMaxPromptBytes = 64 << 20;
inline constexpr int64_t kMaxGeneratedTokens = int64_t{1} << 40;
inline constexpr int64_t kMaxSeed = int64_t{1} << 62;
// Log-probabilities in the result of one request: it is put together in memory, at some 60 bytes
// for each.
inline constexpr int64_t kMaxResultLogProbs = 1 << 22;

// A prompt and what to do with it, as flags or a line of JSON put it.
struct Prompt {
  std::optional<std::string> text;  // absent if request.prompt has the ids already
  Request request;
  bool echo = false;               // the prompt is a part of the result
  bool add_special_tokens = true;  // to a text, as the model's files say
};

// The text of a file as a prompt: without the byte order mark in front, and without one newline at
// its end, LF or CRLF, which editors put there.
std::string prompt_of_file(std::string text);

// The next line of a terminal, without its end; false if there is none. One that there is no memory
// for is std::bad_alloc, where std::getline would take it for the end.
bool read_line(std::istream& terminal, std::string& line);

// What goes to the engine: the text as token ids; with `echo` and log-probabilities also those of
// the prompt. Throws the errors of Tokenizer::encode; for a text that cannot fit `context` tokens
// before it is tokenized, or soon after that begins; Interrupted.
Request make_request(const Tokenizer& tokenizer, const Prompt& prompt, bool parse_special,
                     int64_t context);

// The most log-probabilities that the result can have. Each token has its own and those of
// Request::log_probs others; the tokens are those of all samples (max_tokens of each, or what is
// left of `context`), and those of the prompt if it is scored. Throws Error for more than
// kMaxResultLogProbs.
int64_t check_log_probs(const Request& request, int64_t context);

}  // namespace sparsellm
