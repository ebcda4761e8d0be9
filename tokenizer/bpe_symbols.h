#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe_model.h"

namespace sparsellm {

// The token of a byte in models with byte fallback: "<0x0A>".
std::string byte_token(uint8_t byte);
// The byte that a token stands for; hexadecimal letters may be small.
std::optional<uint8_t> byte_of_token(std::string_view token);

// The symbols of a word before anything is merged.
class BpeSymbols {
 public:
  // Throws Error, with `source` in front, if there is byte fallback for some bytes only.
  BpeSymbols(const BpeModel& model, std::string_view source);

  struct Symbol {
    int32_t id;
    int32_t bytes;  // of the word
    bool is_unknown;
  };
  // The symbol that begins at the byte `at` of a well-formed word. Throws Error for one without a
  // token if there is no unknown token.
  Symbol read(std::string_view word, size_t at) const;

  // The ids of all symbols that a token may begin with, however it was merged: its text is that of
  // its symbols, one after the other.
  std::vector<int32_t> leads_of(std::string_view token) const;

  bool has_unknown() const;  // a text may have symbols that become the unknown token

 private:
  static constexpr int32_t kNone = -1;

  int32_t find_character(char32_t character) const;

  BpeModel::Symbols kind_;
  bool byte_fallback_;
  std::array<int32_t, 256> byte_ids_{};   // of bytes, or of what characters fall back to
  std::array<int32_t, 128> ascii_ids_{};  // of characters
  std::unordered_map<char32_t, int32_t> character_ids_;  // of the others
  std::optional<int32_t> unknown_id_;
  std::string unknown_token_;
};

}  // namespace sparsellm
