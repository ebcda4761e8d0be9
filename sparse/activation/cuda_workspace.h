#pragma once

#include <cstdint>

// What the CUDA kernels of activation sparsity take from the workspace, as far as it follows from
// these sizes of theirs. In every build: what a model takes on a GPU can be asked without one.
namespace sparsellm {

// Tokens whose votes are there at once.
inline constexpr int64_t kVotedTokens = 256;

// Neurons whose sum is a partial sum of a down-projection, and tokens that have partial sums at
// once.
inline constexpr int kRangeNeurons = 512;
inline constexpr int64_t kPartialTokens = 32;
constexpr int64_t range_count(int64_t neurons) {
  return (neurons + kRangeNeurons - 1) / kRangeNeurons;
}

namespace token_votes {

// The votes of eight tokens for the 512 columns of 16 sign words, in a byte each.
inline constexpr int64_t kGroupTokens = 8;
inline constexpr int64_t kSegmentWords = 16;
inline constexpr int64_t kSegmentBytes = 4096;
int64_t segment_count(int64_t columns);
// Of the votes of tokens: whole groups and whole segments.
int64_t byte_count(int64_t columns, int64_t tokens);

}  // namespace token_votes

}  // namespace sparsellm
