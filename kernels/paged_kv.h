#pragma once

#include <cstdint>

#include "kernels/base/tensor.h"

namespace sparsellm {

inline constexpr int64_t kPageSize = 16;     // tokens
inline constexpr int64_t kMaxHeadDim = 256;  // of attention(), and of norms of heads

// Pages that hold `tokens` tokens.
constexpr int64_t pages_for(int64_t tokens) {
  return tokens / kPageSize + (tokens % kPageSize != 0);
}

// One layer's keys and values: pages of a pool, in the dtype of the activations, or on the CPU in
// f16. A page holds, head after head, the vectors of kPageSize consecutive tokens of one request.
struct KvLayer {
  Tensor k;  // [pages, kv_heads, kPageSize, head_dim]
  Tensor v;  // the same shape
};

// The rows of a step, request after request, and where their keys and values are. Request r has
// the rows [query_start[r], query_start[r + 1]); they are its last tokens, so that row i stands at
// position kv_length[r] - (query_start[r + 1] - i).
struct PagedBatch {
  Tensor query_start;  // i32 [requests + 1], from 0 to tokens
  Tensor kv_length;    // i32 [requests], the tokens of this step included
  // i32 [requests, pages per request]. Entries beyond kv_length are not read, nor are those that no
  // row's window (AttentionParams in kernels/attention.h) reaches: their pages may be others'
  // again.
  Tensor page_table;
  Tensor positions;  // i32 [tokens]
  // Each request has exactly one row, so that row r is request r's. On CUDA rows may then be
  // padding (position -1, kv_length 0): they are stored nowhere and their results are 0.
  // With Launches::overlapping, what is enqueued between the last ordinary launch and attention()
  // or append_attention() appends no token but these; kv_length and page_table are there before it.
  // (Before the kernels before them have ended, both read the tables; attention() all keys but
  // those of a request's last page, append_attention() keys and values of any page.)
  bool decode = false;
  // Rows at the front whose tokens come after their prompts; all others are of prompts. With
  // `decode` these are all rows, padding included: who treats them in a way of their own passes
  // over rows of position -1, which belong to no token.
  int64_t generated = 0;

  int64_t tokens() const { return positions.size(0); }
  int64_t requests() const { return kv_length.size(0); }
};

}  // namespace sparsellm
