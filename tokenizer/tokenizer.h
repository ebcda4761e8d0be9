#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/open_directory.h"

namespace sparsellm {

struct EncodeOptions {
  bool add_special_tokens = true;  // BOS in front (and EOS after), as the model's files say
  bool parse_special = false;      // control tokens written in the text become ids, not text
  // A text of more tokens, special ones included, is refused as soon as that is certain.
  int64_t max_tokens = std::numeric_limits<int64_t>::max();
  // Called now and then while a text is encoded; what it throws ends that.
  std::function<void()> poll = {};
};

// A text that has more than EncodeOptions::max_tokens.
class TooManyTokens : public Error {
 public:
  using Error::Error;
};

// Text to token ids and back, as Hugging Face does it for the same files; but
// "clean_up_tokenization_spaces", which takes spaces out of decoded text, is never applied.
// Immutable; safe to share between threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Beside the ids of a long text memory holds a piece of it at a time: what is cut nowhere, such
  // as millions of letters without a space, takes up to 40 bytes for a byte, and 230 with
  // SentencePiece. Where a normalizer, or a Metaspace that does not split, changes what is between
  // two added tokens, memory holds that once more as it becomes (and for a moment as it is between
  // two steps), in up to 3 bytes for a byte, since spaces become U+2581. Throws Error if `text` is
  // not valid UTF-8, naming the byte, or has more than 64 MiB, for a byte that the vocabulary has
  // no token for, and if the regular expressions of the tokenizer take more steps than fit a text
  // of its size (match_limit.h); TooManyTokens.
  virtual std::vector<int32_t> encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;

  // The bytes that `id` stands for after other tokens (never stripped of a leading space); not
  // always whole UTF-8 characters. Empty for a control token unless requested, and for an id that
  // no token has (negative, in a hole, beyond the end): models pad their vocabulary and may produce
  // it.
  virtual std::string token_bytes(int32_t id, bool show_special = false) const = 0;

  // The most bytes of a text that become one token, so that a text of n bytes has at least n / this
  // tokens. Absent if there is no bound: a run of unknown characters becomes one token, or a token
  // takes the white space around it along.
  virtual std::optional<int64_t> max_token_bytes() const { return {}; }

  // True if a text loses its leading space when decoded (SentencePiece's dummy prefix).
  virtual bool strips_leading_space() const = 0;
  // What is left of token_bytes(id) then if the text begins with this token: all but one space in
  // front, unless the tokenizer says otherwise.
  virtual std::string first_token_bytes(int32_t id) const;

  // Bytes that are no UTF-8 become U+FFFD each, as in models with byte fallback, instead of one for
  // a character that was begun. Characters beside them stay, where Hugging Face replaces the whole
  // run of tokens that are bytes: a stream would wait for its end.
  virtual bool replaces_each_byte() const { return false; }

  virtual int64_t vocab_size() const = 0;  // the largest id + 1; not every id needs to be there
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
};

// From tokenizer.model (SentencePiece), tokenizer.json (BPE), or vocab.json with merges.txt
// (byte-level BPE), the first of these that the directory has; tokenizer_config.json
// names BOS and EOS. Throws Error that names the file and what is wrong or not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const OpenDirectory& directory);
// Whether the directory has one of these.
bool has_tokenizer(const OpenDirectory& directory);

// The files of the directory that load_tokenizer() reads, by name.
std::vector<std::string> tokenizer_files(const OpenDirectory& directory);

// Turns a stream of ids into a stream of text. Each call returns the text that is certain by then:
// whole UTF-8 characters only, U+FFFD for bytes that cannot become one.
class IncrementalDecoder {
 public:
  // `continues` says that a prompt stands in front, so that no leading space is stripped;
  // `show_special` that control tokens have a text.
  IncrementalDecoder(const Tokenizer& tokenizer, bool continues, bool show_special = false);

  std::string add(int32_t id);  // empty for an id that no token has
  std::string finish();         // what is left, incomplete characters as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool strip_;
  bool show_special_;
  std::string pending_;  // an incomplete UTF-8 sequence
};

// All of `ids` at once.
std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool show_special = false);

}  // namespace sparsellm
