#include <algorithm>
#include <cmath>

#include "kernels/base/dtype.h"
#include "kernels/cpu_loops.h"
#include "kernels/device/norm_heads_cpu.h"
#include "kernels/device/rotate_cpu.h"
#include "kernels/kv_append_device.h"

namespace sparsellm {
namespace {

// A finite value that would become infinite becomes NaN: an infinite score may be of no weight, and
// the loss go unnoticed, but a NaN reaches the logits of its request, and of no other.
Half to_page(float value, Half) {
  const Half half = to_half(value);
  return std::isinf(to_float(half)) && !std::isinf(value) ? Half{0x7e00} : half;
}
float to_page(float value, float) { return value; }

// One token's vectors of all heads, to its slot in a page.
template <class T>
void store_token(const float* from, const Tensor& pages, int64_t page, int64_t slot) {
  const int64_t head_dim = pages.size(3);
  for (int64_t head = 0; head < pages.size(1); ++head) {
    std::transform(from + head * head_dim, from + (head + 1) * head_dim,
                   pages.row<T>(page) + (head * kPageSize + slot) * head_dim,
                   [](float value) { return to_page(value, T{}); });
  }
}

template <class T>
void append(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
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
      store_token<T>(k.row<float>(row), kv.k, page, slot);
      store_token<T>(v.row<float>(row), kv.v, page, slot);
    });
  }
}

}  // namespace

void kv_append_cpu(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                   ExecContext& ctx) {
  kv.k.dtype() == DType::f16 ? append<Half>(k, v, batch, kv, ctx)
                             : append<float>(k, v, batch, kv, ctx);
}

void rope_kv_append_cpu(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                        const KvLayer& kv, ExecContext& ctx) {
  const HeadNorms& norms = transform.norms;
  if (!norms.empty()) {
    norm_heads_cpu(norms.q, norms.epsilon, rows.q, ctx);
    norm_heads_cpu(norms.k, norms.epsilon, rows.k, ctx);
  }
  if (!transform.cos_sin.empty()) {
    rotate_cpu(transform.cos_sin, rows.q, ctx);
    rotate_cpu(transform.cos_sin, rows.k, ctx);
  }
  kv_append_cpu(rows.k, rows.v, batch, kv, ctx);
}

}  // namespace sparsellm
