#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sparsellm {

// How the text of a token in the vocabulary becomes the bytes it stands for.
struct DecoderOptions {
  struct Replace {  // every occurrence, from left to right
    std::string pattern;
    std::string content;
  };
  struct Metaspace {
    std::string replacement;  // is a space
    bool prepended;           // none in the first token of a text
  };
  using Step = std::variant<Replace, Metaspace>;

  bool byte_level = false;           // tokens are written in the symbols of byte_alphabet.h
  std::vector<Step> steps = {};      // else; one after the other
  bool byte_fallback = false;        // "<0x0A>" is a byte, once these are done
  bool strip_leading_space = false;  // of the text
};

class TokenDecoder {
 public:
  explicit TokenDecoder(DecoderOptions options);

  // After other tokens.
  std::string bytes(std::string_view token) const;
  // At the beginning of a text.
  std::string first_bytes(std::string_view token) const;
  // Whether the two differ for some tokens.
  bool strips_leading_space() const;
  bool has_byte_fallback() const { return options_.byte_fallback; }

 private:
  std::string decode(std::string_view token, bool is_first) const;

  DecoderOptions options_;
};

}  // namespace sparsellm
