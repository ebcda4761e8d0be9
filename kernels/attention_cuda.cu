#include "kernels/attention_cuda.cuh"

namespace sparsellm {

void attention_cuda(const Tensor& q, const KvLayer& kv, const PagedBatch& batch, float scale,
                    Tensor y, ExecContext& ctx) {
  if (batch.decode && ctx.sums == Sums::fastest) {
    attention_decode_cuda(q, kv, batch, scale, y, ctx);
  } else {
    attention_prefill_cuda(q, kv, batch, scale, y, ctx);
  }
}

int64_t attention_workspace_bytes_cuda(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return attention_decode_workspace_bytes(heads, kv_heads, head_dim);
}

}  // namespace sparsellm
