#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"
#include "kernels/device/paged_kv.cuh"
#include "kernels/device/rotation.cuh"
#include "kernels/device/warp_head.cuh"
#include "kernels/kv_append_device.h"

namespace sparsellm {
namespace {

template <class T>
struct Step {
  const float* cos_sin;
  int64_t cos_sin_stride;
  T* q;
  int64_t q_stride;
  const T* k;
  int64_t k_stride;
  const T* v;
  int64_t v_stride;
  T* k_pages;
  T* v_pages;
  const int* query_start;
  const int* positions;
  const int* page_table;
  int64_t table_stride;
  int requests;
  bool decode;
  int heads;  // of q; 0 without rotation and norms
  int kv_heads;
  int half;  // of head_dim
};

// Of all heads of q and of k.
template <class T>
struct Norms {
  const T* q;
  const T* k;
  float epsilon;
};

// Where a row's token goes.
struct Slot {
  int64_t page;
  int index;  // in the page
};

template <class T>
__device__ Slot slot_of(const Step<T>& step, int64_t row, int position) {
  const int request = step.decode
                          ? static_cast<int>(row)
                          : request_of(step.query_start, step.requests, static_cast<int>(row));
  return {step.page_table[request * step.table_stride + position / kPageSize],
          position % static_cast<int>(kPageSize)};
}

template <class T>
__device__ T* head_in_pages(T* pages, const Slot& slot, int kv_head, const Step<T>& step) {
  return pages + ((slot.page * step.kv_heads + kv_head) * kPageSize + slot.index) * 2 * step.half;
}

// Elements i and half + i of a head, kVector of each, that are rotated together.
template <int kVector>
struct Pair {
  float low[kVector];
  float high[kVector];
};

template <int kVector, class T>
__device__ Pair<kVector> load_pair(const T* low, int half) {
  Pair<kVector> pair;
  load_vector(low, pair.low);
  load_vector(low + half, pair.high);
  return pair;
}

template <int kVector, class T>
__device__ void store_pair(const Pair<kVector>& pair, T* low, int half) {
  store_vector(pair.low, low);
  store_vector(pair.high, low + half);
}

template <int kVector>
__device__ void rotate_pair(Pair<kVector>& pair, const float* cosines, int half) {
  float cosine[kVector];
  float sine[kVector];
  load_vector(cosines, cosine);
  load_vector(cosines + half, sine);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const Rotated rotated = rotate(pair.low[i], pair.high[i], cosine[i], sine[i]);
    pair.low[i] = rotated.low;
    pair.high[i] = rotated.high;
  }
}

// blockIdx.x is the row. Its heads (those of q, then of k, then of v) are cut into pairs of
// vectors, which the threads along y share out.
template <int kVector, class T>
__global__ void rope_kv_append_kernel(Step<T> step) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t row = blockIdx.x;
  const int position = step.positions[row];
  if (position < 0) {
    return;  // padding
  }
  const Slot slot = slot_of(step, row, position);
  const int pairs = step.half / kVector;  // in a head
  const int head_dim = 2 * step.half;
  const float* angles = step.cos_sin + row * step.cos_sin_stride;
  for (int i = elementwise_first(); i < (step.heads + 2 * step.kv_heads) * pairs;
       i += elementwise_step()) {
    const int head = i / pairs;
    const int at = i % pairs * kVector;  // in the head
    if (head < step.heads) {
      T* q = step.q + row * step.q_stride + head * head_dim + at;
      Pair<kVector> pair = load_pair<kVector>(q, step.half);
      rotate_pair(pair, angles + at, step.half);
      store_pair(pair, q, step.half);
      continue;
    }
    const bool is_key = head < step.heads + step.kv_heads;
    const int kv_head = head - step.heads - (is_key ? 0 : step.kv_heads);
    const T* from = (is_key ? step.k + row * step.k_stride : step.v + row * step.v_stride) +
                    kv_head * head_dim + at;
    T* to = head_in_pages(is_key ? step.k_pages : step.v_pages, slot, kv_head, step) + at;
    Pair<kVector> pair = load_pair<kVector>(from, step.half);
    if (is_key && step.heads > 0) {
      rotate_pair(pair, angles + at, step.half);
    }
    store_pair(pair, to, step.half);
  }
}

// blockIdx.x is the row. Its heads (those of q, then of k, then of v) are shared out to the warps
// of the blocks along y.
template <class T>
__global__ void norm_rope_kv_append_kernel(Step<T> step, Norms<T> norms) {
  launch_dependents();
  wait_on_dependencies();
  constexpr int kPairs = static_cast<int>(kMaxHeadDim) / 2 / kWarpSize;
  const int64_t row = blockIdx.x;
  const int position = step.positions[row];
  if (position < 0) {
    return;  // padding
  }
  const Slot slot = slot_of(step, row, position);
  const int half = step.half;
  for (int i = elementwise_first() / kWarpSize; i < step.heads + 2 * step.kv_heads;
       i += elementwise_step() / kWarpSize) {
    const bool is_query = i < step.heads;
    const bool is_key = !is_query && i < step.heads + step.kv_heads;
    const int kv_head = i - step.heads - (is_key ? 0 : step.kv_heads);
    if (!is_query && !is_key) {
      store_head(load_head<kPairs>(step.v + row * step.v_stride + kv_head * 2 * half, half), half,
                 head_in_pages(step.v_pages, slot, kv_head, step));
      continue;
    }
    T* q = step.q + row * step.q_stride + i * 2 * half;
    const T* from = is_query ? q : step.k + row * step.k_stride + kv_head * 2 * half;
    WarpHead<kPairs, float> head =
        normalised(load_head<kPairs>(from, half),
                   load_head<kPairs>(is_query ? norms.q : norms.k, half), half, norms.epsilon);
    if (step.cos_sin != nullptr) {
      rotate_head(head, load_head<kPairs>(step.cos_sin + row * step.cos_sin_stride, half));
    }
    store_head(head, half, is_query ? q : head_in_pages(step.k_pages, slot, kv_head, step));
  }
}

bool aligned(const Tensor& x, int64_t vector) {
  const int64_t bytes = vector * size_of(x.dtype());
  return reinterpret_cast<uintptr_t>(x.raw()) % static_cast<uintptr_t>(bytes) == 0 &&
         x.row_stride() % vector == 0;
}

// q is empty where the transform is.
void append(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
            const KvLayer& kv, ExecContext& ctx) {
  constexpr int kVector = 4;
  const Tensor& cos_sin = transform.cos_sin;
  const int64_t head_dim = kv.k.size(3);
  // Without rotation any split into two parts will do.
  require(head_dim % 2 == 0, "kv_append: head_dim {} is odd", head_dim);
  const int64_t half = head_dim / 2;
  const int64_t heads = rows.q.empty() ? 0 : rows.q.size(1) / head_dim;
  const int64_t all_heads = heads + 2 * kv.k.size(1);
  const bool vectors = half % kVector == 0 && aligned(rows.k, kVector) &&
                       aligned(rows.v, kVector) && aligned(kv.k, kVector) &&
                       aligned(kv.v, kVector) &&
                       (heads == 0 || (aligned(rows.q, kVector) && aligned(cos_sin, kVector)));
  visit_activation(rows.k.dtype(), [&]<class T>(T) {
    const Step<T> step{.cos_sin = static_cast<const float*>(cos_sin.raw()),
                       .cos_sin_stride = cos_sin.row_stride(),
                       .q = static_cast<T*>(rows.q.raw()),
                       .q_stride = heads == 0 ? 0 : rows.q.row_stride(),
                       .k = static_cast<const T*>(rows.k.raw()),
                       .k_stride = rows.k.row_stride(),
                       .v = static_cast<const T*>(rows.v.raw()),
                       .v_stride = rows.v.row_stride(),
                       .k_pages = static_cast<T*>(kv.k.raw()),
                       .v_pages = static_cast<T*>(kv.v.raw()),
                       .query_start = static_cast<const int*>(batch.query_start.raw()),
                       .positions = static_cast<const int*>(batch.positions.raw()),
                       .page_table = static_cast<const int*>(batch.page_table.raw()),
                       .table_stride = batch.page_table.row_stride(),
                       .requests = static_cast<int>(batch.requests()),
                       .decode = batch.decode,
                       .heads = static_cast<int>(heads),
                       .kv_heads = static_cast<int>(kv.k.size(1)),
                       .half = static_cast<int>(half)};
    if (!transform.norms.empty()) {
      const Norms<T> norms{.q = static_cast<const T*>(transform.norms.q.raw()),
                           .k = static_cast<const T*>(transform.norms.k.raw()),
                           .epsilon = transform.norms.epsilon};
      launch(ctx, norm_rope_kv_append_kernel<T>,
             elementwise_shape(batch.tokens(), all_heads * kWarpSize, true), step, norms);
      return;
    }
    const int64_t width = vectors ? kVector : 1;
    const LaunchShape shape = elementwise_shape(batch.tokens(), all_heads * half / width, true);
    if (vectors) {
      launch(ctx, rope_kv_append_kernel<kVector, T>, shape, step);
    } else {
      launch(ctx, rope_kv_append_kernel<1, T>, shape, step);
    }
  });
}

}  // namespace

void kv_append_cuda(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                    ExecContext& ctx) {
  append({}, {.q = {}, .k = k, .v = v}, batch, kv, ctx);
}

void rope_kv_append_cuda(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                         const KvLayer& kv, ExecContext& ctx) {
  const QkvRows used = transform.empty() ? QkvRows{.q = {}, .k = rows.k, .v = rows.v} : rows;
  append(transform, used, batch, kv, ctx);
}

}  // namespace sparsellm
