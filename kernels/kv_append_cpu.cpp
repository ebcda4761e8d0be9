#include <cstddef>
#include <optional>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "kernels/cpu_loops.h"
#include "kernels/device/rotate_cpu.h"
#include "kernels/kv_append_device.h"

namespace sparsellm {
namespace {

// One token's vectors of all heads, to its slot in a page.
void store_token(const float* from, const Tensor& pages, int64_t page, int64_t slot) {
  const int64_t head_dim = pages.size(3);
  const int64_t bytes = head_dim * size_of(pages.dtype());
  auto* const first = static_cast<std::byte*>(pages.rows(page, 1).raw()) + slot * bytes;
  for (int64_t head = 0; head < pages.size(1); ++head) {
    const std::optional<float> overflow =
        convert(DType::f32, reinterpret_cast<const std::byte*>(from + head * head_dim),
                pages.dtype(), first + head * kPageSize * bytes, head_dim);
    require(!overflow, "a key or value of {} is beyond {}, in which the KV cache holds it",
            overflow.value_or(0.0f), name_of(pages.dtype()));
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
