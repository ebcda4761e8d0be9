#include "tokenizer/token_decoder.h"

#include <algorithm>
#include <utility>

#include "tokenizer/bpe_symbols.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/find_text.h"

namespace sparsellm {
namespace {

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string result;
  size_t done = 0;
  while (done < text.size()) {
    const size_t found = std::min(find_text(text, pattern, done), text.size());
    result.append(text.substr(done, found - done));
    if (found < text.size()) {
      result.append(content);
    }
    done = found + pattern.size();
  }
  return result;
}

std::string decode_step(const DecoderOptions::Replace& step, std::string_view token,
                        bool /*is_first*/) {
  return replace_all(token, step.pattern, step.content);
}

std::string decode_step(const DecoderOptions::Metaspace& step, std::string_view token,
                        bool is_first) {
  return replace_all(token, step.replacement, is_first && step.prepended ? "" : " ");
}

}  // namespace

TokenDecoder::TokenDecoder(DecoderOptions options) : options_(std::move(options)) {}

std::string TokenDecoder::decode(std::string_view token, bool is_first) const {
  if (options_.byte_level) {
    // A token that is not made of byte symbols, as added tokens may be, stands for itself.
    return bytes_of_symbols(token).value_or(std::string(token));
  }
  std::string text(token);
  for (const DecoderOptions::Step& step : options_.steps) {
    text = std::visit([&](const auto& s) { return decode_step(s, text, is_first); }, step);
  }
  if (options_.byte_fallback) {
    if (const auto byte = byte_of_token(text)) {
      text.assign(1, static_cast<char>(*byte));
    }
  }
  return text;
}

std::string TokenDecoder::bytes(std::string_view token) const { return decode(token, false); }

std::string TokenDecoder::first_bytes(std::string_view token) const {
  std::string bytes = decode(token, true);
  if (options_.strip_leading_space && bytes.starts_with(' ')) {
    bytes.erase(0, 1);
  }
  return bytes;
}

bool TokenDecoder::strips_leading_space() const {
  return options_.strip_leading_space ||
         std::any_of(options_.steps.begin(), options_.steps.end(), [](const auto& step) {
           const auto* metaspace = std::get_if<DecoderOptions::Metaspace>(&step);
           return metaspace != nullptr && metaspace->prepended;
         });
}

}  // namespace sparsellm
