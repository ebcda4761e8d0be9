#include <algorithm>

#include "kernels/cpu_loops.h"
#include "kernels/device/rotate_cpu.h"
#include "kernels/kv_append_device.h"

namespace sparsellm {
namespace {

// One token's vectors of all heads, to its slot in a page.
void store_token(const float* from, const Tensor& pages, int64_t page, int64_t slot) {
  const int64_t head_dim = pages.size(3);
  for (int64_t head = 0; head < pages.size(1); ++head) {
    std::copy_n(from + head * head_dim, head_dim,
                pages.row<float>(page) + (head * kPageSize + slot) * head_dim);
  }
}

}  // namespace

void kv_append_cpu(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                   ExecContext& ctx) {
  const int32_t* query_start = batch.query_start.data<int32_t>();
  const int32_t* positions = batch.positions.data<int32_t>();
  for (int64_t request = 0; request < batch.requests(); ++request) {
    const int32_t* pages = batch.page_table.row<int32_t>(request);
    const int64_t first = query_start[request];
    for_each_row(query_start[request + 1] - first, 2 * k.size(1), ctx, [&](int64_t i) {
      const int64_t row = first + i;
      const int64_t page = pages[positions[row] / kPageSize];
      const int64_t slot = positions[row] % kPageSize;
      store_token(k.row<float>(row), kv.k, page, slot);
      store_token(v.row<float>(row), kv.v, page, slot);
    });
  }
}

void rope_kv_append_cpu(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                        const KvLayer& kv, ExecContext& ctx) {
  rotate_cpu(cos_sin, rows.q, ctx);
  rotate_cpu(cos_sin, rows.k, ctx);
  kv_append_cpu(rows.k, rows.v, batch, kv, ctx);
}

}  // namespace sparsellm
