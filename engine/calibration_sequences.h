#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sparsellm {

inline constexpr int64_t kMaxCalibrationTextBytes = int64_t{1} << 30;

struct CalibrationText {
  std::string_view text;
  int64_t tokens = 0;               // in all, the sequences' BOS included; at least 2
  int64_t length = 0;               // of a sequence; at least 2
  std::function<void()> poll = {};  // EncodeOptions::poll
};

// Pieces of a text to calibrate with: sequences of `length` tokens until there are `tokens`; the
// last may be shorter. Each starts with BOS if the tokenizer puts it in front of a text. The text
// is tokenised once; the pieces do not overlap and are spread over all of it, from its begin to its
// end, with gaps of the same size (to a token). A text that is shorter than asked for is taken as a
// whole. Throws Error for a text without tokens, for numbers out of range, and as encode() does.
std::vector<std::vector<int32_t>> calibration_sequences(const Tokenizer& tokenizer,
                                                        const CalibrationText& from);

}  // namespace sparsellm
