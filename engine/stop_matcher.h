#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sparsellm {

// Looks for stop texts in a text that arrives in pieces, and lets through what is certain to stand
// in front of them. Where the pieces begin and end makes no difference.
class StopMatcher {
 public:
  // The texts are not copied; none is empty.
  explicit StopMatcher(std::span<const std::string> stops) : stops_(stops) {}

  // The text that may be shown by now. Nothing once a stop text was found: the one that is complete
  // first, the longest if several end at the same place.
  std::string add(std::string_view piece);
  // The end of the text: what add() held back, unless a stop text was found.
  std::string finish();

  bool found() const { return found_; }

 private:
  std::span<const std::string> stops_;
  std::string held_;  // the beginning of a stop text, perhaps
  bool found_ = false;
};

}  // namespace sparsellm
