#include "models/kv_cache.h"

#include "kernels/base/error.h"

namespace sparsellm {

KvCache::KvCache(Device device, const KvShape& shape, int64_t pages)
    : shape_(shape),
      pages_(pages),
      memory_(
          allocate_tensor(device, shape.dtype,
                          {checked_mul(2 * shape.layers, pages, "pages of the KV cache"),
                           shape.kv_heads, kPageSize, shape.head_dim},
                          fmt::format("the KV cache of {} tokens (a smaller context takes less)",
                                      checked_mul(pages, kPageSize, "tokens of the KV cache")))) {}

KvLayer KvCache::layer(int64_t index) const {
  return {.k = memory_.view.rows(2 * index * pages_, pages_),
          .v = memory_.view.rows((2 * index + 1) * pages_, pages_)};
}

}  // namespace sparsellm
