#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

struct KvShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;

  int64_t bytes_per_token() const { return 2 * layers * kv_heads * head_dim * size_of(dtype); }
};

// The pool of key/value pages of all layers, one allocation.
class KvCache {
 public:
  KvCache(Device device, const KvShape& shape, int64_t pages);

  int64_t pages() const { return pages_; }
  int64_t bytes() const { return memory_.view.bytes(); }
  KvLayer layer(int64_t index) const;

 private:
  KvShape shape_;
  int64_t pages_;
  OwnedTensor memory_;  // [2 * layers * pages, kv_heads, kPageSize, head_dim]
};

}  // namespace sparsellm
