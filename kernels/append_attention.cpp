#include "kernels/append_attention.h"

#include "kernels/attention_device.h"
#include "kernels/checks.h"
#include "kernels/kv_append_device.h"

namespace sparsellm {

void append_attention(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                      const KvLayer& kv, const AttentionParams& params, Tensor y,
                      ExecContext& ctx) {
  constexpr std::string_view kOp = "append_attention";
  check_kv_append(transform, rows, batch, kv, ctx);
  check_attention(rows.q, kv, batch, params, y, ctx);
  check_disjoint({kOp, "k and y"}, rows.k, y);
  check_disjoint({kOp, "v and y"}, rows.v, y);
  check_disjoint({kOp, "cos_sin and y"}, transform.cos_sin, y);
  if (ctx.device.is_cuda() && append_attention_cuda(transform, rows, batch, kv, params, y, ctx)) {
    return;
  }
  rope_kv_append(transform, rows, batch, kv, ctx);
  attention(rows.q, kv, batch, params, y, ctx);
}

}  // namespace sparsellm
