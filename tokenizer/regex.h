#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/match_limit.h"

namespace sparsellm {

// A compiled regular expression (PCRE2, UTF-8, Unicode properties). Immutable; safe to share
// between threads. Which characters a property has depends on the Unicode version of the PCRE2
// library.
class Regex {
 public:
  // `pattern` in the syntax of Oniguruma, as far as oniguruma.h takes it. Throws Error that quotes
  // it if it does not compile or can match the empty string.
  explicit Regex(std::string_view pattern);

  using Visit = std::function<void(std::string_view piece, bool is_match)>;
  // Calls visit(piece, is_match) for the matches in `text` and the stretches between them, in
  // order, none of them empty; together they are `text`, which must be well-formed UTF-8. Throws
  // Error if a match needs more steps than `limit` has left, or too much memory.
  void split(std::string_view text, MatchLimit& limit, const Visit& visit) const;
  // Appends the pieces; the limit is that of a text of its own.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  class Search;
  struct CodeDeleter {
    void operator()(void* code) const;
  };
  struct ContextDeleter {
    void operator()(void* context) const;
  };
  using Code = std::unique_ptr<void, CodeDeleter>;  // pcre2_code

  std::string pattern_;
  Code quick_;
  Code counting_;                                        // calls back for each item
  std::unique_ptr<void, ContextDeleter> quick_context_;  // pcre2_match_context
};

}  // namespace sparsellm
