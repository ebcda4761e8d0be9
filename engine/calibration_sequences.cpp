#include "engine/calibration_sequences.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// BOS, or nothing.
std::vector<int32_t> first_tokens(const Tokenizer& tokenizer) {
  const std::vector<int32_t> frame = tokenizer.encode("", {.add_special_tokens = true});
  const bool has_bos = !frame.empty() && tokenizer.bos_id() == frame.front();
  return has_bos ? std::vector<int32_t>{frame.front()} : std::vector<int32_t>{};
}

}  // namespace

std::vector<std::vector<int32_t>> calibration_sequences(const Tokenizer& tokenizer,
                                                        const CalibrationText& from) {
  require(from.tokens >= 2, "{} tokens are too few to calibrate with; use at least 2", from.tokens);
  require(from.length >= 2,
          "sequences of {} tokens are too short to calibrate with; use at least 2", from.length);
  const std::vector<int32_t> text =
      tokenizer.encode(from.text, {.add_special_tokens = false, .poll = from.poll});
  require(!text.empty(), "the text to calibrate with has no tokens");

  const std::vector<int32_t> first = first_tokens(tokenizer);
  std::vector<int64_t> pieces;  // tokens of the text in each sequence
  int64_t text_left = std::ssize(text);
  int64_t tokens_left = from.tokens;
  while (text_left > 0 && tokens_left > std::ssize(first)) {
    pieces.push_back(std::min(text_left, std::min(tokens_left, from.length) - std::ssize(first)));
    text_left -= pieces.back();
    tokens_left -= pieces.back() + std::ssize(first);
  }

  std::vector<std::vector<int32_t>> sequences;
  const int64_t gaps = std::max<int64_t>(std::ssize(pieces) - 1, 1);
  int64_t taken = 0;
  for (int64_t piece : pieces) {
    const int64_t begin = taken + text_left * std::ssize(sequences) / gaps;
    std::vector<int32_t> sequence = first;
    sequence.insert(sequence.end(), text.begin() + static_cast<std::ptrdiff_t>(begin),
                    text.begin() + static_cast<std::ptrdiff_t>(begin + piece));
    sequences.push_back(std::move(sequence));
    taken += piece;
  }
  return sequences;
}

}  // namespace sparsellm
