#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace sparsellm {

int64_t count_characters(std::string_view text);  // of UTF-8

// Where tokens begin in the text that IncrementalDecoder makes of them, in characters. A token that
// is a later part of a character stands where the character does.
class TextOffsets {
 public:
  // `continues` and `show_special` as of IncrementalDecoder; `first` characters stand in front.
  TextOffsets(const Tokenizer& tokenizer, bool continues, bool show_special, int64_t first = 0);

  int64_t add(int32_t id);  // where the token begins

 private:
  const Tokenizer* tokenizer_;
  bool strip_;
  bool show_special_;
  int64_t characters_;   // that are certain
  std::string pending_;  // an incomplete one after them
};

}  // namespace sparsellm
