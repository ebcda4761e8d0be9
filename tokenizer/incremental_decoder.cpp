#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// Moves everything that is certain from the front of `bytes` into the result.
std::string take_certain_text(std::string& bytes) {
  std::string text;
  size_t offset = 0;
  while (offset < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(offset);
    const Utf8Front front = utf8_front(rest);
    if (front.kind == Utf8Front::Kind::incomplete) {
      break;
    }
    text += front.kind == Utf8Front::Kind::character ? rest.substr(0, front.length)
                                                     : kReplacementCharacter;
    offset += front.length;
  }
  bytes.erase(0, offset);
  return text;
}

}  // namespace

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool continues)
    : tokenizer_(&tokenizer), strip_(tokenizer.strips_leading_space() && !continues) {}

std::string IncrementalDecoder::add(int32_t id) {
  std::string bytes = tokenizer_->token_bytes(id);
  if (strip_ && !bytes.empty()) {
    strip_ = false;
    if (bytes.front() == ' ') {
      bytes.erase(0, 1);
    }
  }
  pending_ += bytes;
  return take_certain_text(pending_);
}

std::string IncrementalDecoder::finish() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return std::string(incomplete ? kReplacementCharacter : "");
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  IncrementalDecoder decoder(tokenizer, false);
  std::string text;
  for (int32_t id : ids) {
    text += decoder.add(id);
  }
  return text + decoder.finish();
}

}  // namespace sparsellm
