#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// For bytes that cannot become a character.
std::string replacement(size_t bytes, bool replaces_each_byte) {
  std::string text(kReplacementCharacter);
  for (size_t i = 1; i < bytes && replaces_each_byte; ++i) {
    text += kReplacementCharacter;
  }
  return text;
}

// Moves everything that is certain from the front of `bytes` into the result.
std::string take_certain_text(std::string& bytes, bool replaces_each_byte) {
  std::string text;
  size_t offset = 0;
  while (offset < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(offset);
    const Utf8Front front = utf8_front(rest);
    if (front.kind == Utf8Front::Kind::incomplete) {
      break;
    }
    const auto length = static_cast<size_t>(front.length);
    if (front.kind == Utf8Front::Kind::character) {
      text += rest.substr(0, length);
    } else {
      text += replacement(length, replaces_each_byte);
    }
    offset += length;
  }
  bytes.erase(0, offset);
  return text;
}

}  // namespace

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool continues,
                                       bool show_special)
    : tokenizer_(&tokenizer),
      strip_(tokenizer.strips_leading_space() && !continues),
      show_special_(show_special) {}

std::string IncrementalDecoder::add(int32_t id) {
  std::string bytes = tokenizer_->token_bytes(id, show_special_);
  if (strip_ && !bytes.empty()) {
    strip_ = false;
    const bool is_control = show_special_ && tokenizer_->token_bytes(id).empty();
    bytes = is_control ? bytes : tokenizer_->first_token_bytes(id);
  }
  pending_ += bytes;
  return take_certain_text(pending_, tokenizer_->replaces_each_byte());
}

std::string IncrementalDecoder::finish() {
  const size_t incomplete = pending_.size();
  pending_.clear();
  return incomplete == 0 ? "" : replacement(incomplete, tokenizer_->replaces_each_byte());
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool show_special) {
  IncrementalDecoder decoder(tokenizer, false, show_special);
  std::string text;
  for (int32_t id : ids) {
    text += decoder.add(id);
  }
  return text + decoder.finish();
}

}  // namespace sparsellm
