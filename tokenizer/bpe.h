#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe_model.h"
#include "tokenizer/bpe_symbols.h"

namespace sparsellm {

// Byte-pair encoding (Sennrich et al. 2016, section 3.2): of all neighbouring pairs that have a
// merge, the one of the lowest rank is merged, the leftmost first, until there is none.
class BytePairEncoder {
 public:
  // Throws Error, with `source` in front, for an empty vocabulary, two tokens with one id, merges
  // of tokens, or into a token, that the vocabulary does not have, and as BpeSymbols does. Of two
  // merges of the same pair the later one counts. `window` is the number of symbols of a word that
  // are merged at a time; it does not change the ids.
  BytePairEncoder(const BpeModel& model, std::string_view source, int32_t window = 1 << 10);

  // Appends the ids of a well-formed word of at most 2^31 - 1 bytes, in O(n log n) and, with the
  // merges of usual models, in the memory of a window; calls checkpoint() after each and now and
  // then inside. Throws Error for a symbol without a token if there is no unknown token.
  void encode(
      std::string_view word, std::vector<int32_t>& ids,
      const std::function<void()>& checkpoint = [] {}) const;

  bool has_unknown() const { return symbols_.has_unknown(); }

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
  int32_t first_rank(int32_t left, int32_t next) const;
  size_t read_symbols(std::string_view word, size_t begin, int32_t count,
                      std::vector<Symbol>& symbols) const;
  int32_t merge_all(std::vector<Symbol>& symbols, std::string_view word, size_t end,
                    const std::function<void()>& checkpoint) const;

  BpeSymbols symbols_;
  std::unordered_map<uint64_t, Merge> merges_;        // by the ids of the pair
  std::unordered_map<uint64_t, int32_t> first_rank_;  // by a left token and the symbol after it
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> whole_words_;  // by bytes
  bool fuse_unknown_;
  int32_t window_;
};

}  // namespace sparsellm
