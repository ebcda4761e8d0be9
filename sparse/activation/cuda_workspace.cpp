#include "sparse/activation/cuda_workspace.h"

#include <algorithm>

#include "kernels/base/workspace.h"
#include "sparse/activation/active_rows_device.h"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/sign_words.h"

namespace sparsellm {

int64_t token_votes::segment_count(int64_t columns) {
  return (sign_word_count(columns) + kSegmentWords - 1) / kSegmentWords;
}

int64_t token_votes::byte_count(int64_t columns, int64_t tokens) {
  return (tokens + kGroupTokens - 1) / kGroupTokens * segment_count(columns) * kSegmentBytes;
}

int64_t sign_predictor_workspace_bytes_cuda(int64_t columns, int64_t tokens) {
  const int64_t at_once = std::min(tokens, kVotedTokens);
  return Workspace::tensor_bytes(DType::u8, {token_votes::byte_count(columns, at_once)}) +
         Workspace::tensor_bytes(DType::i32, {at_once, 2});
}

int64_t down_rows_workspace_bytes_cuda(int64_t neurons, int64_t out, int64_t tokens) {
  return Workspace::tensor_bytes(DType::f32,
                                 {range_count(neurons), std::min(tokens, kPartialTokens), out});
}

}  // namespace sparsellm
