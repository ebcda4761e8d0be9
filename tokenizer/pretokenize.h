#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/metaspace.h"
#include "tokenizer/regex.h"
#include "tokenizer/split_pieces.h"

namespace sparsellm {

struct SplitStep {  // cuts words at the matches of a pattern
  enum class Pattern : uint8_t { regex, text };

  std::string pattern;  // of Oniguruma, or a text that is not empty
  Pattern kind = Pattern::regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what is between the matches takes their part
};
using PretokenizerStep = std::variant<SplitStep, MetaspaceStep>;

// How a text is cut into words before byte-pair encoding, which never joins two words.
struct PretokenizerOptions {
  std::vector<PretokenizerStep> steps = {};  // each cuts the words of the one before
  bool add_prefix_space = false;             // in front of each word that has none; then
  bool use_gpt2_pattern = true;              // the expression of GPT-2 cuts them once more
};

class Pretokenizer {
 public:
  static constexpr size_t kMaxSteps = 100;

  // Throws Error for more steps than that, and as Regex does.
  explicit Pretokenizer(const PretokenizerOptions& options);

  using Visit = std::function<void(std::string_view word)>;
  // Calls visit(word) for the words of a well-formed text, in order; none is empty, and each may be
  // gone after the call. `begins_text` is false for a text that is only the rest of one. Throws
  // Error as Regex::split does.
  void for_each_word(std::string_view text, bool begins_text, MatchLimit& limit,
                     const Visit& visit) const;
  // A whole text, with a limit of its own.
  void for_each_word(std::string_view text, const Visit& visit) const;

  bool removes_text() const;  // some of the text may be in no word

 private:
  struct Split {
    SplitStep step;
    std::optional<Regex> regex;  // absent for a text
  };
  using Step = std::variant<Split, MetaspaceStep>;
  struct Word {
    std::string_view text;
    bool begins_text;
  };

  void cut(Word word, size_t level, MatchLimit& limit, const Visit& visit) const;
  static void split(const Split& split, std::string_view word, MatchLimit& limit,
                    const SplitPieces::Visit& visit);
  void finish(std::string_view word, MatchLimit& limit, const Visit& visit) const;

  std::vector<Step> steps_;
  bool add_prefix_space_;
  std::optional<Regex> gpt2_;
};

}  // namespace sparsellm
