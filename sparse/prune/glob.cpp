#include "sparse/prune/glob.h"

#include <cstddef>

namespace sparsellm {
namespace {

// `one(c)`: whether ? matches c. A star that turns out to have taken too little takes one character
// more; only the last one ever has to.
template <class One>
bool matches(std::string_view pattern, std::string_view text, One&& one) {
  size_t p = 0;
  size_t t = 0;
  size_t after_star = std::string_view::npos;  // in the pattern
  size_t star_end = 0;                         // of what the last star has taken of the text
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_end = t;
    } else if (p < pattern.size() && (pattern[p] == '?' ? one(text[t]) : pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      t = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  return matches(pattern, text, [](char) { return true; });
}

bool glob_covers(std::string_view pattern, std::string_view special) {
  // As a text; what only a star can cover there is a star.
  return matches(pattern, special, [](char c) { return c != '*'; });
}

}  // namespace sparsellm
