#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {

// A compiled regular expression (PCRE2, UTF-8, Unicode properties). Immutable; safe to share
// between threads. Which characters a property has depends on the Unicode version of the PCRE2
// library.
class Regex {
 public:
  // `pattern` in the syntax of Oniguruma, as far as oniguruma.h takes it. Throws Error that quotes
  // it if it does not compile or can match the empty string.
  explicit Regex(std::string_view pattern);

  // Appends the matches in `text` and the stretches between them, in order, none of them empty;
  // together they are `text`, which must be well-formed UTF-8. Throws Error if a match takes too
  // many steps or too much memory.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct CodeDeleter {
    void operator()(void* code) const;
  };

  std::string pattern_;
  std::unique_ptr<void, CodeDeleter> code_;  // pcre2_code
};

}  // namespace sparsellm
