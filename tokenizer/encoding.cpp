#include "tokenizer/encoding.h"

namespace sparsellm {

Encoding::Encoding(std::string_view text, const EncodeOptions& options,
                   std::optional<int64_t> max_token_bytes)
    : text_bytes_(text.size()), options_(options), max_token_bytes_(max_token_bytes) {
  check_piece(text.size());
}

void Encoding::check() const {
  check_count(0);
  if (options_.poll) {
    options_.poll();
  }
}

void Encoding::check_piece(size_t bytes) const {
  if (!max_token_bytes_) {
    return check_count(0);
  }
  const auto longest = static_cast<size_t>(*max_token_bytes_);
  check_count(bytes / longest + (bytes % longest == 0 ? 0 : 1));
}

void Encoding::check_count(size_t more) const {
  if (static_cast<int64_t>(ids.size() + more) > options_.max_tokens) {
    throw TooManyTokens(fmt::format("the text of {} bytes has more than {} tokens", text_bytes_,
                                    options_.max_tokens));
  }
}

}  // namespace sparsellm
