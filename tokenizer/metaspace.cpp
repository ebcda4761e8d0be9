#include "tokenizer/metaspace.h"

#include <algorithm>

#include "tokenizer/find_text.h"

namespace sparsellm {
namespace {

// Where the next space or replacement begins, at `from` or after it.
class NextSpace {
 public:
  NextSpace(std::string_view text, std::string_view replacement)
      : text_(text), replacement_(replacement) {}

  size_t find(size_t from) {
    if (space_ < from || is_new_) {
      space_ = std::min(text_.find(' ', from), text_.size());
    }
    if (symbol_ < from || is_new_) {
      symbol_ = std::min(find_text(text_, replacement_, from), text_.size());
    }
    is_new_ = false;
    return std::min(space_, symbol_);
  }

 private:
  std::string_view text_;
  std::string_view replacement_;
  size_t space_ = 0;
  size_t symbol_ = 0;
  bool is_new_ = true;
};

}  // namespace

void for_each_metaspace_word(
    const MetaspaceStep& step, std::string_view text, bool begins_text,
    const std::function<void(std::string_view word, bool is_first)>& visit) {
  using Prepend = MetaspaceStep::Prepend;
  const bool prepends =
      (step.prepend == Prepend::always || (step.prepend == Prepend::first && begins_text)) &&
      !text.starts_with(' ') && !text.starts_with(step.replacement);
  std::string word;
  if (!step.split) {  // all of the text
    const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
    word.reserve(text.size() + (spaces + 1) * step.replacement.size());
  }
  if (prepends) {
    word = step.replacement;
  }
  bool is_first = begins_text;
  NextSpace next(text, step.replacement);
  size_t done = 0;  // what is in front of it is in `word`, or was visited
  for (size_t space = next.find(0); space < text.size(); space = next.find(done)) {
    word.append(text.substr(done, space - done));
    if (step.split && !word.empty()) {
      visit(word, is_first);
      is_first = false;
      word.clear();
    }
    word += step.replacement;
    done = space + (text[space] == ' ' ? 1 : step.replacement.size());
  }
  if (done == 0 && !prepends) {
    visit(text, is_first);  // nothing changes
  } else {
    visit(word.append(text.substr(done)), is_first);
  }
}

}  // namespace sparsellm
