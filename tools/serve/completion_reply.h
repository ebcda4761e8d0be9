#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tools/serve/engine_loop.h"
#include "tools/serve/text_offsets.h"

namespace sparsellm {

// A prompt in front of its continuations.
struct Echo {
  std::string text;
  std::vector<int32_t> tokens = {};  // with log-probabilities: those of the prompt
  // Control tokens have a part of the text: it was made of the ids. A text that was sent has none
  // of those that are added to it.
  bool has_special_tokens = false;
};

// What a reply needs to know of its request.
struct ReplyFormat {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool stream = false;
  bool include_usage = false;
  int32_t samples = 1;  // of each prompt
  std::optional<int32_t> log_probs = {};
  bool show_special_tokens = false;
  std::vector<Echo> echoes = {};  // of each prompt; empty without `echo`
  int64_t prompt_tokens = 0;      // of all prompts
};

// The answer to POST /v1/completions, put together as the events of its requests come: as one
// object (OpenAI's "text_completion"), or as server-sent events, one for each token.
class CompletionReply {
 public:
  CompletionReply(const Tokenizer& tokenizer, size_t prompts, ReplyFormat format);

  // Appends what a stream is to send for the event; nothing if it does not stream.
  void add(const LoopEvents& events, const LoopEvents::Event& event, std::string& chunks);

  bool finished() const { return open_ == 0; }       // all choices
  std::string_view error() const { return error_; }  // of the first that failed; empty: none did
  int64_t generated() const { return generated_; }   // tokens
  int64_t prompt_tokens() const { return format_.prompt_tokens; }
  size_t choices() const { return choices_.size(); }
  size_t choice_of(const LoopEvents::Event& event) const {
    return static_cast<size_t>(event.request) * static_cast<size_t>(format_.samples) +
           static_cast<size_t>(event.sample);
  }

  std::string body() const;        // when all have finished
  std::string stream_end() const;  // after the last event
  std::string stream_error(int status, std::string_view message) const;

 private:
  // Of a choice: elements of JSON arrays, with commas between them.
  struct LogProbs {
    std::string tokens;
    std::string values;
    std::string top;
    std::vector<int64_t> offsets;
  };
  struct Choice {
    std::string text;  // of a stream: what has come since the chunk before
    LogProbs log_probs;
    int64_t characters = 0;  // of all of the text
    std::optional<TextOffsets> offsets;
    bool begun = false;
    std::optional<FinishReason> finish;
  };

  void begin(const LoopEvents& events, const LoopEvents::Event& event, Choice& choice);
  void echo_log_probs(size_t prompt, Choice& choice) const;
  void append_token(int32_t id, int64_t offset, LogProbs& lists) const;
  void append_log_probs(const TokenLogProbs& token, int64_t offset, LogProbs& lists) const;
  void end_offsets(const LoopEvents::Event& event, Choice& choice) const;
  void take_chunk(size_t index, std::string& chunks);
  void append_choice(size_t index, const Choice& choice, std::string& out) const;
  std::string usage() const;

  const Tokenizer& tokenizer_;
  ReplyFormat format_;
  std::string head_;  // of the object and of each chunk
  std::vector<Choice> choices_;
  // Of each prompt, when sample 0 has brought them.
  std::vector<std::vector<TokenLogProbs>> prompt_log_probs_;
  size_t open_;
  int64_t generated_ = 0;
  std::string error_;
};

// The text of a token in the lists of log-probabilities: control tokens have one too, and bytes
// that are not UTF-8 are "bytes:\xe2\x96".
std::string shown_token(const Tokenizer& tokenizer, int32_t id);

}  // namespace sparsellm
