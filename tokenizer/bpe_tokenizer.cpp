#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/encoding.h"
#include "tokenizer/token_table.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(const BpeTokenizerParts& parts)
      : pretokenizer_(parts.pretokenizer),
        encoder_(parts.model, parts.source),
        decoder_(parts.decoder),
        added_tokens_(parts.special_tokens.added_tokens, parts.source,
                      Normalizer(parts.normalizer)),
        frame_(parts.frame),
        bos_id_(parts.special_tokens.bos_id),
        eos_id_(parts.special_tokens.eos_id) {
    for (const auto& [text, id] : parts.model.vocabulary) {
      tokens_.add(id, {});
      show(id, text);
    }
    // Hugging Face decodes them to what they look like in a text.
    const std::vector<AddedToken>& added = parts.special_tokens.added_tokens;
    const std::vector<std::string> contents = contents_in_text(added, Normalizer(parts.normalizer));
    for (size_t i = 0; i < added.size(); ++i) {
      const AddedToken& token = added[i];
      const bool is_new_id = tokens_.add(token.id, {});
      const std::optional<int32_t> model_id = parts.model.find(token.content);
      require(model_id ? *model_id == token.id : is_new_id,
              "{}: the added token {} has the id {}, which does not fit the vocabulary",
              parts.source, quote(token.content), token.id);
      show(token.id, contents[i]);
      tokens_.set_special(token.id, token.special);
    }
    for (const auto* side : {&frame_.prefix, &frame_.suffix}) {
      for (int32_t id : *side) {
        require(tokens_.contains(id), "{}: the post-processor adds {}, which is no token's id",
                parts.source, id);
      }
    }
    find_max_token_bytes(parts);
  }

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    check_text(text);
    Encoding encoding(text, options, max_token_bytes_);
    if (options.add_special_tokens) {
      encoding.ids = frame_.prefix;
    }
    MatchLimit limit(text.size(), options.poll);
    const auto encode_word = [&](std::string_view word) {
      encoding.check_piece(word.size());
      encoder_.encode(word, encoding.ids, [&] { encoding.check(); });
    };
    const auto encode_segment = [&](const AddedTokens::Segment& segment) {
      if (segment.id) {
        encoding.ids.push_back(*segment.id);
        encoding.check();
      } else {
        pretokenizer_.for_each_word(segment.text, segment.begins_text, limit, encode_word);
      }
    };
    added_tokens_.for_each_segment(text, options.parse_special, encode_segment, options.poll);
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
  std::string first_token_bytes(int32_t id) const override {
    const auto found = first_bytes_.find(id);
    const std::string bytes = tokens_.bytes(id, false);
    return bytes.empty() || found == first_bytes_.end() ? bytes : found->second;
  }
  bool strips_leading_space() const override { return decoder_.strips_leading_space(); }
  bool replaces_each_byte() const override { return decoder_.has_byte_fallback(); }
  int64_t vocab_size() const override { return tokens_.vocab_size(); }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }

 private:
  // Sets what a token that is in the table is decoded to.
  void show(int32_t id, std::string_view text) {
    std::string bytes = decoder_.bytes(text);
    std::string first_bytes = decoder_.first_bytes(text);
    if (bytes == first_bytes) {
      first_bytes_.erase(id);
    } else {
      first_bytes_.insert_or_assign(id, std::move(first_bytes));
    }
    tokens_.replace(id, std::move(bytes));
  }

  void find_max_token_bytes(const BpeTokenizerParts& parts) {
    if (encoder_.has_unknown() || pretokenizer_.removes_text() ||
        !added_tokens_.max_token_bytes()) {
      return;
    }
    size_t longest = std::max(size_t{1}, *added_tokens_.max_token_bytes());
    for (const auto& [text, id] : parts.model.vocabulary) {
      const bool are_bytes = parts.model.symbols == BpeModel::Symbols::bytes;
      longest = std::max(longest, are_bytes ? decoder_.bytes(text).size() : text.size());
    }
    max_token_bytes_ = Normalizer(parts.normalizer).source_bytes(static_cast<int64_t>(longest));
  }

  Pretokenizer pretokenizer_;
  BytePairEncoder encoder_;
  TokenDecoder decoder_;
  AddedTokens added_tokens_;
  TokenTable tokens_;
  std::unordered_map<int32_t, std::string> first_bytes_;  // where they differ from the others
  Frame frame_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::optional<int64_t> max_token_bytes_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const BpeTokenizerParts& parts) {
  return std::make_unique<BpeTokenizer>(parts);
}

}  // namespace sparsellm
