#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"

namespace sparsellm {

// How a text is cut into words before byte-pair encoding, which never joins two words.
struct PretokenizerOptions {
  std::vector<std::string> split_patterns = {};  // Oniguruma; each cuts the words of the one before
  bool add_prefix_space = false;                 // in front of each word that has none; then
  bool use_gpt2_pattern = true;                  // the expression of GPT-2 cuts them once more
};

class Pretokenizer {
 public:
  static constexpr size_t kMaxSplitPatterns = 100;

  // Throws Error for more patterns than that, and as Regex does.
  explicit Pretokenizer(const PretokenizerOptions& options);

  using Visit = std::function<void(std::string_view word)>;
  // Calls visit(word) for the words of a well-formed text, in order; none is empty. Throws Error as
  // Regex::split does.
  void for_each_word(std::string_view text, MatchLimit& limit, const Visit& visit) const;
  void for_each_word(std::string_view text, const Visit& visit) const;  // with a limit of its own

 private:
  void split_word(std::string_view word, size_t level, MatchLimit& limit, const Visit& visit) const;

  std::vector<Regex> splits_;
  bool add_prefix_space_;
  std::optional<Regex> gpt2_;
};

}  // namespace sparsellm
