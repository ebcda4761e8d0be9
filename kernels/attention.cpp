#include "kernels/attention.h"

#include "kernels/attention_device.h"
#include "kernels/attention_split.h"
#include "kernels/base/error.h"
#include "kernels/checks.h"

namespace sparsellm {

void check_attention(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                     const AttentionParams& params, const Tensor& y, const ExecContext& ctx) {
  require(params.scale > 0.0f, "attention: scale {} is not positive", params.scale);
  require(params.window >= 0, "attention: window {} is negative", params.window);
  check_paged_batch("attention", batch, kv, params.window, ctx);
  check_tensor({"attention", "q"}, q, Elements::activation, {batch.tokens(), kAnySize}, ctx);
  check_tensor({"attention", "y"}, y, Elements::activation, {batch.tokens(), q.size(1)}, ctx);
  check_same_dtype({"attention", "q and y"}, q, y);
  check_kv_dtype({"attention", "q and the pages"}, q, kv, ctx);
  check_disjoint({"attention", "q and y"}, q, y);
  const int64_t kv_heads = kv.k.size(1);
  const int64_t head_dim = kv.k.size(3);
  require(head_dim > 0 && head_dim % 8 == 0 && head_dim <= kMaxHeadDim,
          "attention: head_dim {} is not a multiple of 8 up to {}", head_dim, kMaxHeadDim);
  require(kv_heads > 0 && q.size(1) % head_dim == 0 && q.size(1) / head_dim % kv_heads == 0,
          "attention: q {} is not made of groups of {} heads of {}", q.shape_string(), kv_heads,
          head_dim);
}

void attention(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
               const AttentionParams& params, Tensor y, ExecContext& ctx) {
  check_attention(q, kv, batch, params, y, ctx);
  if (batch.tokens() == 0) {
    return;
  }
  if (ctx.device.is_cuda()) {
    attention_cuda(q, kv, batch, params, y, ctx);
  } else {
    attention_cpu(q, kv, batch, params, y, ctx);
  }
}

int64_t attention_workspace_bytes(Device device, int64_t heads, int64_t kv_heads,
                                  int64_t head_dim) {
  if (!device.is_cuda()) {
    return 0;
  }
  // A launch is split only as long as rows * kv_heads * pieces * splits <= kMaxBlocks.
  const int64_t parts =
      attention_decode::kMaxBlocks / (kv_heads * attention_decode::pieces_of(heads, kv_heads));
  return Workspace::tensor_bytes(DType::f32, {parts, heads, head_dim}) +
         Workspace::tensor_bytes(DType::f32, {parts, heads, 2});
}

}  // namespace sparsellm
