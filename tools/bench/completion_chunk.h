#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sparsellm {

// What an event of a stream of completions says (OpenAI's "text_completion", or an error), as far
// as a benchmark wants it.
struct CompletionChunk {
  int64_t choices = 0;                      // that it continues
  std::optional<int64_t> generated_tokens;  // of the whole answer: usage.completion_tokens
  std::optional<std::string> error;         // its message
};

// The end of a stream, in the place of a chunk.
inline constexpr std::string_view kStreamDone = "[DONE]";

// Throws Error unless `data` is a JSON object.
CompletionChunk read_completion_chunk(std::string_view data);

// The message in the body of a response that refuses a request; the beginning of the body where
// there is none.
std::string refusal_text(std::string_view body);

}  // namespace sparsellm
