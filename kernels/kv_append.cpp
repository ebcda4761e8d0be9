#include "kernels/kv_append.h"

#include "kernels/checks.h"
#include "kernels/kv_append_device.h"

namespace sparsellm {

void kv_append(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
               ExecContext& ctx) {
  check_paged_batch("kv_append", batch, kv, ctx);
  const int64_t features = kv.k.size(1) * kv.k.size(3);
  check_tensor({"kv_append", "k"}, k, Elements::activation, {batch.tokens(), features}, ctx);
  check_tensor({"kv_append", "v"}, v, Elements::activation, {batch.tokens(), features}, ctx);
  check_same_dtype({"kv_append", "k and its pages"}, k, kv.k);
  check_same_dtype({"kv_append", "v and its pages"}, v, kv.v);
  if (ctx.device.is_cuda()) {
    kv_append_cuda(k, v, batch, kv, ctx);
  } else {
    kv_append_cpu(k, v, batch, kv, ctx);
  }
}

}  // namespace sparsellm
