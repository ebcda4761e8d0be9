#include "kernels/attention_cuda.cuh"

namespace sparsellm {

void attention_cuda(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                    const AttentionParams& params, Tensor y, ExecContext& ctx) {
  if (batch.decode && ctx.sums == Sums::fastest) {
    attention_decode_cuda(q, {}, kv, batch, params, y, ctx);
  } else {
    attention_prefill_cuda(q, kv, batch, params, y, ctx);
  }
}

bool append_attention_cuda(const QkTransform& transform, const QkvRows& rows,
                           const PagedBatch& batch, const KvLayer& kv,
                           const AttentionParams& params, Tensor y, ExecContext& ctx) {
  if (!batch.decode || ctx.sums == Sums::batch_invariant ||
      !attention_decode_is_one_wave(batch.tokens(), kv, rows.q.size(1) / kv.k.size(3), ctx)) {
    return false;
  }
  attention_decode_cuda(rows.q, {.transform = transform, .k = rows.k, .v = rows.v}, kv, batch,
                        params, y, ctx);
  return true;
}

}  // namespace sparsellm
