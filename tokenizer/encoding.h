#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sparsellm {

// The ids of a text while they are made.
class Encoding {
 public:
  // `text` and `options` have to live as long; `max_token_bytes` is that of the tokenizer.
  Encoding(std::string_view text, const EncodeOptions& options,
           std::optional<int64_t> max_token_bytes);

  std::vector<int32_t> ids;

  // In front of a piece that is encoded at once: throws TooManyTokens if there are too many ids, or
  // the piece has so many bytes that there are bound to be.
  void check_piece(size_t bytes) const;
  // Now and then: throws TooManyTokens if there are too many ids, and what EncodeOptions::poll
  // throws.
  void check() const;

 private:
  void check_count(size_t more) const;

  size_t text_bytes_;
  const EncodeOptions& options_;
  std::optional<int64_t> max_token_bytes_;
};

}  // namespace sparsellm
