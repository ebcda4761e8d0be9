#include "tokenizer/byte_level.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/encoding.h"
#include "tokenizer/token_table.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

class ByteLevelTokenizer : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(const ByteLevelParts& parts)
      : pretokenizer_(parts.pretokenizer),
        encoder_(parts.model, parts.source),
        added_tokens_(parts.special_tokens.added_tokens, parts.source),
        frame_(parts.frame),
        bos_id_(parts.special_tokens.bos_id),
        eos_id_(parts.special_tokens.eos_id) {
    size_t longest = 1;
    for (const auto& [text, id] : parts.model.vocabulary) {
      std::string bytes = shown_bytes(text);
      longest = std::max(longest, bytes.size());
      tokens_.add(id, std::move(bytes));
    }
    if (added_tokens_.max_token_bytes() && !encoder_.has_unknown_bytes()) {
      max_token_bytes_ = static_cast<int64_t>(std::max(longest, *added_tokens_.max_token_bytes()));
    }
    for (const AddedToken& token : parts.special_tokens.added_tokens) {
      const bool is_new_id = tokens_.add(token.id, shown_bytes(token.content));
      const std::optional<int32_t> model_id = parts.model.find(token.content);
      require(model_id ? *model_id == token.id : is_new_id,
              "{}: the added token {} has the id {}, which does not fit the vocabulary",
              parts.source, quote(token.content), token.id);
      tokens_.set_special(token.id, token.special);
    }
    for (const auto* side : {&frame_.prefix, &frame_.suffix}) {
      for (int32_t id : *side) {
        require(tokens_.contains(id), "{}: the post-processor adds {}, which is no token's id",
                parts.source, id);
      }
    }
  }

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    check_text(text);
    Encoding encoding(text, options, max_token_bytes_);
    if (options.add_special_tokens) {
      encoding.ids = frame_.prefix;
    }
    MatchLimit limit(text.size(), options.poll);
    added_tokens_.for_each_segment(text, options.parse_special, [&](const auto& segment) {
      if (segment.id) {
        encoding.ids.push_back(*segment.id);
        encoding.check();
        return;
      }
      pretokenizer_.for_each_word(segment.text, limit, [&](std::string_view word) {
        encoding.check_piece(word.size());
        encoder_.encode(word, encoding.ids, [&] { encoding.check(); });
      });
    });
    if (options.add_special_tokens) {
      encoding.ids.insert(encoding.ids.end(), frame_.suffix.begin(), frame_.suffix.end());
    }
    encoding.check();
    return std::move(encoding.ids);
  }

  std::optional<int64_t> max_token_bytes() const override { return max_token_bytes_; }
  std::string token_bytes(int32_t id, bool show_special) const override {
    return tokens_.bytes(id, show_special);
  }
  bool strips_leading_space() const override { return false; }
  int64_t vocab_size() const override { return tokens_.vocab_size(); }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }

 private:
  // A token that is not made of byte symbols, as added tokens may be, stands for itself.
  static std::string shown_bytes(const std::string& text) {
    return bytes_of_symbols(text).value_or(text);
  }

  Pretokenizer pretokenizer_;
  BytePairEncoder encoder_;
  AddedTokens added_tokens_;
  TokenTable tokens_;
  Frame frame_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::optional<int64_t> max_token_bytes_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_level_tokenizer(const ByteLevelParts& parts) {
  return std::make_unique<ByteLevelTokenizer>(parts);
}

}  // namespace sparsellm
