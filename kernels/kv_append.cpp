#include "kernels/kv_append.h"

#include "kernels/checks.h"
#include "kernels/kv_append_device.h"

namespace sparsellm {
namespace {

void check(std::string_view op, const Tensor& k, const Tensor& v, const PagedBatch& batch,
           const KvLayer& kv, const ExecContext& ctx) {
  // Of the page table only the pages of the step's own tokens are used: a window of one token.
  check_paged_batch(op, batch, kv, 1, ctx);
  const int64_t features = kv.k.size(1) * kv.k.size(3);
  check_tensor({op, "k"}, k, Elements::activation, {batch.tokens(), features}, ctx);
  check_tensor({op, "v"}, v, Elements::activation, {batch.tokens(), features}, ctx);
  check_same_dtype({op, "k and v"}, k, v);
  check_kv_dtype({op, "k and its pages"}, k, kv, ctx);
}

void check_norms(std::string_view op, const HeadNorms& norms, const QkvRows& rows, int64_t head_dim,
                 const ExecContext& ctx) {
  require(head_dim <= kMaxHeadDim, "{}: norms of heads of {}, which are larger than {}", op,
          head_dim, kMaxHeadDim);
  require(norms.epsilon >= 0.0f, "{}: epsilon of the norms is {}", op, norms.epsilon);
  check_tensor({op, "the norm of q"}, norms.q, Elements::floating, {head_dim}, ctx);
  check_tensor({op, "the norm of k"}, norms.k, Elements::floating, {head_dim}, ctx);
  if (ctx.device.is_cuda()) {
    check_same_dtype({op, "q and its norm"}, rows.q, norms.q);
    check_same_dtype({op, "k and its norm"}, rows.k, norms.k);
  }
}

}  // namespace

void check_kv_append(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                     const KvLayer& kv, const ExecContext& ctx) {
  if (transform.empty()) {
    check("kv_append", rows.k, rows.v, batch, kv, ctx);
    return;
  }
  constexpr std::string_view kOp = "rope_kv_append";
  check(kOp, rows.k, rows.v, batch, kv, ctx);
  check_tensor({kOp, "q"}, rows.q, Elements::activation, {batch.tokens(), kAnySize}, ctx);
  check_same_dtype({kOp, "q and k"}, rows.q, rows.k);
  const int64_t head_dim = kv.k.size(3);
  require(head_dim > 0 && head_dim % 2 == 0 && rows.q.size(1) % head_dim == 0,
          "rope_kv_append: q {} is not made of whole heads of {}", rows.q.shape_string(), head_dim);
  if (!transform.cos_sin.empty()) {
    check_tensor({kOp, "cos_sin"}, transform.cos_sin, Elements::f32, {batch.tokens(), head_dim},
                 ctx);
  }
  if (!transform.norms.empty()) {
    check_norms(kOp, transform.norms, rows, head_dim, ctx);
  }
  check_disjoint({kOp, "q and k"}, rows.q, rows.k);
  check_disjoint({kOp, "q and v"}, rows.q, rows.v);
  check_disjoint({kOp, "k and v"}, rows.k, rows.v);
  check_disjoint({kOp, "cos_sin and q"}, transform.cos_sin, rows.q);
  check_disjoint({kOp, "cos_sin and k"}, transform.cos_sin, rows.k);
}

void kv_append(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
               ExecContext& ctx) {
  check("kv_append", k, v, batch, kv, ctx);
  if (ctx.device.is_cuda()) {
    kv_append_cuda(k, v, batch, kv, ctx);
  } else {
    kv_append_cpu(k, v, batch, kv, ctx);
  }
}

void rope_kv_append(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                    const KvLayer& kv, ExecContext& ctx) {
  check_kv_append(transform, rows, batch, kv, ctx);
  if (ctx.device.is_cuda()) {
    rope_kv_append_cuda(transform, rows, batch, kv, ctx);
  } else {
    rope_kv_append_cpu(transform, rows, batch, kv, ctx);
  }
}

}  // namespace sparsellm
