#include "tokenizer/match_limit.h"

#include <utility>

namespace sparsellm {
namespace {

// A repetition takes a step for each character when it backtracks, once for each alternative.
constexpr size_t kTextSteps = 1'000'000;
constexpr size_t kTextStepsPerByte = 32;
constexpr size_t kStepsPerPoll = 1 << 16;

}  // namespace

MatchLimit::MatchLimit(size_t text_bytes, std::function<void()> poll)
    : text_bytes_(text_bytes),
      steps_(kTextSteps + kTextStepsPerByte * text_bytes),
      left_(steps_),
      until_poll_(kStepsPerPoll),
      poll_(std::move(poll)) {}

bool MatchLimit::take(size_t steps) {
  if (steps > left_) {
    return false;
  }
  left_ -= steps;
  pass(steps);
  return true;
}

void MatchLimit::pass(size_t bytes) {
  if (bytes < until_poll_) {
    until_poll_ -= bytes;
    return;
  }
  until_poll_ = kStepsPerPoll;
  if (poll_) {
    poll_();
  }
}

}  // namespace sparsellm
