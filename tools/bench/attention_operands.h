#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

// A call of attention() for requests that are all alike.
struct AttentionShape {
  int64_t requests = 0;
  int64_t context = 0;  // tokens of each request, those of its rows included
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f16;
  bool prefill = false;  // rows for all of the context; else one row for its last token
  int64_t window = 0;    // kernels/attention.h

  int64_t rows_per_request() const { return prefill ? context : 1; }
  int64_t rows() const { return requests * rows_per_request(); }
  // By the rows of a request with --prefill, each of which sees the window's before it, on a
  // continuous scale.
  double seen_tokens() const {
    const auto all = static_cast<double>(context);
    const double most = window == 0 ? all : std::min(static_cast<double>(window), all);
    return all * most - 0.5 * most * most;
  }
  // Of the keys and values of the context, as far as some row sees them.
  int64_t kv_bytes() const {
    const int64_t seen = prefill || window == 0 ? context : std::min(window, context);
    return 2 * requests * seen * kv_heads * head_dim * size_of(dtype);
  }
};

// Random operands on the context's device for several such calls that have no memory in common. The
// pages of all calls are in one pool, in random order. Throws OutOfMemory.
class AttentionOperands {
 public:
  AttentionOperands(const AttentionShape& shape, int64_t copies, uint64_t seed, ExecContext& ctx);

  int64_t copies() const { return copies_; }
  AttentionParams params() const;
  KvLayer kv() const { return {.k = k_.view, .v = v_.view}; }
  Tensor q(int64_t copy) const { return q_.view.rows(copy * shape_.rows(), shape_.rows()); }
  Tensor y(int64_t copy) const { return y_.view.rows(copy * shape_.rows(), shape_.rows()); }
  Tensor all_y() const { return y_.view; }
  PagedBatch batch(int64_t copy) const;

 private:
  AttentionShape shape_;
  int64_t copies_;
  OwnedTensor q_;  // [copies * rows, heads * head_dim]
  OwnedTensor y_;
  OwnedTensor k_;
  OwnedTensor v_;
  OwnedTensor page_table_;  // [copies * requests, pages of a request]
  OwnedTensor query_start_;
  OwnedTensor kv_length_;
  OwnedTensor positions_;
};

}  // namespace sparsellm
