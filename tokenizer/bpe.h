#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sparsellm {

// A byte-level BPE model as its files have it: tokens are written in the symbols of
// byte_alphabet.h, and merges are in the order of their rank.
struct BpeModel {
  std::unordered_map<std::string, int32_t> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  std::optional<std::string> unknown_token;  // for bytes without a token
  bool fuse_unknown = false;                 // one for a run of such bytes
  bool ignore_merges = false;                // a word that is a token as a whole stays one

  std::optional<int32_t> find(const std::string& token) const;  // its id
};

// Byte-pair encoding (Sennrich et al. 2016, section 3.2): of all neighbouring pairs that have a
// merge, the one of the lowest rank is merged, the leftmost first, until there is none.
class BytePairEncoder {
 public:
  // Throws Error, with `source` in front, for an empty vocabulary, two tokens with one id, and
  // merges of tokens, or into a token, that the vocabulary does not have. Of two merges of the
  // same pair the later one counts. `window` is the number of symbols of a word that are merged at
  // a time; it does not change the ids.
  BytePairEncoder(const BpeModel& model, std::string_view source, int32_t window = 1 << 16);

  // Appends the ids of a word of at most 2^31 - 1 bytes, in O(n log n) and, with the merges of
  // usual models, in the memory of a window; calls checkpoint() after each and now and then
  // inside. Throws Error for a byte without a token if there is no unknown token.
  void encode(
      std::string_view word, std::vector<int32_t>& ids,
      const std::function<void()>& checkpoint = [] {}) const;

  bool has_unknown_bytes() const { return has_unknown_bytes_; }  // that become the unknown token

 private:
  struct Merge {
    int32_t rank;
    int32_t id;  // of the token that the pair becomes
  };
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct Symbol;

  const Merge* find_merge(int32_t left, int32_t right) const;
  int32_t lead(char byte) const;
  int32_t first_rank(int32_t left, char next) const;
  size_t read_symbols(std::string_view word, size_t begin, int32_t count,
                      std::vector<Symbol>& symbols) const;
  int32_t merge_all(std::vector<Symbol>& symbols, std::string_view word, size_t end,
                    const std::function<void()>& checkpoint) const;

  std::array<std::optional<int32_t>, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;        // by the ids of the pair
  std::unordered_map<uint64_t, int32_t> first_rank_;  // by a left token and what lead() says
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> whole_words_;  // by bytes
  std::optional<int32_t> unknown_id_;
  bool fuse_unknown_;
  int32_t window_;
  bool has_unknown_bytes_;
};

}  // namespace sparsellm
