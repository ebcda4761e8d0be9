#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sparsellm {

// A BPE model as its files have it; merges are in the order of their rank.
struct BpeModel {
  // What is merged at first: bytes, which tokens write as byte_alphabet.h has it, or characters.
  enum class Symbols : uint8_t { bytes, characters };

  Symbols symbols = Symbols::bytes;
  std::unordered_map<std::string, int32_t> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  std::optional<std::string> unknown_token;  // for symbols without a token
  bool fuse_unknown = false;                 // one for a run of such symbols
  bool byte_fallback = false;  // a character without a token is its bytes, "<0x00>" to "<0xFF>"
  bool ignore_merges = false;  // a word that is a token as a whole stays one

  std::optional<int32_t> find(const std::string& token) const;  // its id
};

}  // namespace sparsellm
