#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/sentencepiece_model.h"

namespace sparsellm {

// Cuts a text at places that no piece of a SentencePiece model reaches over. Byte-pair encoding
// never merges over such a place, so the pieces may be encoded one by one: the ids are those of the
// whole text.
class SentencePieceCuts {
 public:
  explicit SentencePieceCuts(const SentencePieceModel& model);

  // False if the ids may depend on distant text all the same; no text is cut then. So it is with
  // unused pieces (how one is divided depends on its last occurrence in the text), with
  // user-defined ones that are not UTF-8, and, if extra white space is removed, that have spaces in
  // them.
  bool possible() const { return possible_; }

  // Where the first piece of the well-formed `text` ends: at the first such place after
  // `min_bytes` bytes, or at the end of the text.
  size_t piece_end(std::string_view text, size_t min_bytes) const;

 private:
  static size_t slot(char32_t left, char32_t right);

  bool possible_;
  // By a hash of two characters: a piece may have them side by side.
  std::vector<bool> joined_;
};

// What SentencePiece makes of extra white space if it is to remove it: no spaces in front, single
// ones in the text, and neither spaces nor their symbol U+2581 at the end.
std::string without_extra_spaces(std::string_view text);

}  // namespace sparsellm
