#pragma once

#include <cstddef>
#include <functional>

namespace sparsellm {

// What regular expressions may do on one text, in steps: an item of an expression that is tried, or
// a character that one runs over. All pieces of the text and all expressions share the limit, which
// grows with the bytes of the text: expressions that take time proportional to them never meet it.
class MatchLimit {
 public:
  // `poll` is called now and then, also in the middle of a match; what it throws ends the match.
  explicit MatchLimit(size_t text_bytes, std::function<void()> poll = {});

  size_t text_bytes() const { return text_bytes_; }
  size_t steps() const { return steps_; }

  // Counts steps, of which there may be too many: false then.
  bool take(size_t steps);
  // Counts bytes that took too few steps each to be counted.
  void pass(size_t bytes);

 private:
  size_t text_bytes_;
  size_t steps_;
  size_t left_;
  size_t until_poll_;
  std::function<void()> poll_;
};

}  // namespace sparsellm
