#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/normalizer.h"

namespace sparsellm {

// A token that is found in the text before the model splits the rest, as Hugging Face's
// "added_tokens" define it.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // a control token: text unless requested, and not shown when decoded
  bool normalized = false;  // looked for in what the others leave of the text, once normalized
  bool lstrip = false;      // takes the white space in front of it along
  bool rstrip = false;      // takes the white space after it along
};

// What each token looks like in a text that is normalized but for those that are not. Throws Error
// as the normalizer does.
std::vector<std::string> contents_in_text(const std::vector<AddedToken>& tokens,
                                          const Normalizer& normalizer);

// Finds added tokens in a text: the leftmost first, and of those that begin at the same place the
// longest.
class AddedTokens {
 public:
  // A longer token is refused: the search takes time proportional to the longest one.
  static constexpr size_t kMaxContentBytes = 1024;

  // Tokens without content are left out. Those that are normalized are looked for as the normalizer
  // leaves them. Throws Error for a token that is too long, for one of which the normalizer leaves
  // nothing, and for two tokens with the same content; `source` names the file.
  AddedTokens(std::vector<AddedToken> tokens, std::string_view source,
              Normalizer normalizer = Normalizer());

  struct Segment {
    std::string_view text;
    std::optional<int32_t> id;  // of an added token; without one, ordinary text that is not empty
    bool begins_text;           // nothing is in front of it
  };
  using Visit = std::function<void(const Segment& segment)>;
  // Cuts the well-formed `text` into segments, which view its normalized form and may be gone after
  // the call, and calls visit(segment) for each, in order. Without `parse_special` a special token
  // in the text hides other tokens that begin inside it, and is ordinary text. Calls poll() now and
  // then.
  void for_each_segment(std::string_view text, bool parse_special, const Visit& visit,
                        const std::function<void()>& poll = {}) const;
  // All of them; without a normalizer.
  std::vector<Segment> split(std::string_view text, bool parse_special) const;

  // Bytes of the longest token; 0 if there is none, absent if one takes white space along, of which
  // there may be any number.
  std::optional<size_t> max_token_bytes() const { return max_token_bytes_; }

 private:
  class Matcher {
   public:
    explicit Matcher(std::vector<AddedToken> tokens = {});
    // The longest token at the front of `text`; nullptr if there is none.
    const AddedToken* longest_prefix(std::string_view text) const;
    void for_each_segment(std::string_view text, bool parse_special, const Visit& visit) const;

   private:
    std::vector<AddedToken> tokens_;  // sorted by content
    std::array<bool, 256> begins_token_{};
  };

  static Matcher make_matcher(const std::vector<AddedToken>& tokens, bool normalized);

  Normalizer normalizer_;
  Matcher verbatim_;
  Matcher normalized_;
  std::optional<size_t> max_token_bytes_ = 0;
};

}  // namespace sparsellm
