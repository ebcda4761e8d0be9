#include "tools/serve/text_offsets.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace sparsellm {

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

TextOffsets::TextOffsets(const Tokenizer& tokenizer, bool continues, bool show_special,
                         int64_t first)
    : tokenizer_(&tokenizer),
      strip_(tokenizer.strips_leading_space() && !continues),
      show_special_(show_special),
      characters_(first) {}

int64_t TextOffsets::add(int32_t id) {
  std::string bytes = tokenizer_->token_bytes(id, show_special_);
  if (strip_ && !bytes.empty()) {
    strip_ = false;
    const bool is_control = show_special_ && tokenizer_->token_bytes(id).empty();
    bytes = is_control ? bytes : tokenizer_->first_token_bytes(id);
  }
  const size_t before = pending_.size();
  pending_ += bytes;
  int64_t place = characters_;
  size_t end = 0;
  while (end < pending_.size()) {
    const Utf8Front front = utf8_front(std::string_view(pending_).substr(end));
    if (front.kind == Utf8Front::Kind::incomplete) {
      break;
    }
    // Bytes that are no character become U+FFFD, one or one each.
    const bool one = front.kind == Utf8Front::Kind::character || !tokenizer_->replaces_each_byte();
    characters_ += one ? 1 : front.length;
    end += static_cast<size_t>(front.length);
    place = end <= before ? characters_ : place;  // what was begun ends before this token
  }
  pending_.erase(0, end);
  return place;
}

}  // namespace sparsellm
