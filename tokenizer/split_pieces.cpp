#include "tokenizer/split_pieces.h"

namespace sparsellm {

void SplitPieces::add(std::string_view part, bool is_match) {
  if (part.empty()) {
    return;
  }
  if (behavior_ == SplitBehavior::removed) {
    if (!is_match) {
      visit_(part);
    }
    return;
  }
  if (!pending_.empty() && joins(is_match)) {
    pending_ = {pending_.data(), pending_.size() + part.size()};
  } else {
    flush();
    pending_ = part;
  }
  after_match_ = is_match;
}

// Whether a part belongs to the piece that the part before is in.
bool SplitPieces::joins(bool is_match) const {
  switch (behavior_) {
    case SplitBehavior::merged_with_previous:
      return is_match && !after_match_;
    case SplitBehavior::merged_with_next:
      return !is_match && after_match_;
    case SplitBehavior::contiguous:
      return is_match == after_match_;
    case SplitBehavior::removed:
    case SplitBehavior::isolated:
      break;
  }
  return false;
}

void SplitPieces::finish() {
  flush();
  pending_ = {};
}

void SplitPieces::flush() {
  if (!pending_.empty()) {
    visit_(pending_);
  }
}

}  // namespace sparsellm
