#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/attention_cuda.cuh"
#include "kernels/attention_split.h"
#include "kernels/attention_warp.cuh"
#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/rotation.cuh"
#include "kernels/device/warp_head.cuh"

namespace sparsellm {
namespace {

using attention_decode::kHeadsPerBlock;
using attention_decode::kMaxBlocks;
using attention_decode::kTileDims;
using attention_decode::kTokens;
using attention_decode::pieces_of;
using attention_decode::rescale;
using attention_decode::WarpAttention;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kMaxSplits = 128;

// Blocks that fit a multiprocessor by their registers without spilling (but 16 bytes of a thread at
// head_dim 256); a split launch aims at as many. Each warp has one to two operands of a page in
// flight (2 KiB each for k and v at head_dim 64, 4 KiB at 128, 8 KiB at 256), so that a
// multiprocessor has about 50 KiB or more: what covers the latency of the memory at its bandwidth.
constexpr int blocks_per_multiprocessor(int tiles) { return tiles == 1 ? 4 : tiles == 2 ? 3 : 2; }

template <class T>
struct Operands {
  const T* q;
  T* k_pages;
  T* v_pages;
  const int* kv_length;
  const int* page_table;
  T* y;
};

// What a kernel does with the keys and values of its step: nothing, since they are in their pages;
// or it puts them there, after the norms of k and of q if there are any (HeadNorms).
enum class Append : uint8_t { nothing, tokens, normed_tokens };

// Keys and values of the step that are not in their pages yet.
template <class T>
struct Appended {
  const T* k;
  const T* v;
  const float* cos_sin;  // of rope_angles(), for k and q; null: nothing is rotated
  int64_t k_stride;
  int64_t v_stride;
  int64_t cos_sin_stride;
  const T* q_norm;  // for Append::normed_tokens
  const T* k_norm;
  float norm_epsilon;
};

struct Shape {
  int heads;
  int kv_heads;
  int head_dim;
  int pieces;  // of a group of query heads: kHeadsPerBlock of them for one block
  int64_t q_stride;
  int64_t y_stride;
  int64_t table_stride;
  float scale;
  int window;  // if there is none, one that no context fills
};

// What the splits of a row leave for the last of them, [rows, splits, heads]: softmax sums relative
// to the largest score of the split.
struct Partials {
  float* values;   // [.., head_dim]
  float2* stats;   // largest score, sum of the weights
  uint32_t* left;  // how many have, for every blockIdx.x; 0 before and after
};

// How the pages of a request that its row sees are divided among at most `splits` blocks. Each of
// them but the last has the same number of pages, a multiple of kWarps: fewer would leave warps
// idle without a result any sooner.
struct SplitPages {
  __device__ SplitPages(int kv_length, int window, int splits) {
    first = max(kv_length - window, 0) / kTokens;
    end = (kv_length + kTokens - 1) / kTokens;
    const int even = (end - first + splits - 1) / splits;
    per_split = (even + kWarps - 1) / kWarps * kWarps;
  }
  __device__ int used_splits() const {
    return end == first ? 0 : (end - first + per_split - 1) / per_split;
  }

  int first;
  int end;
  int per_split;
};

// Whether all `splits` of a blockIdx.x have left their sums, this block as the last of them.
__device__ bool is_last_split(uint32_t* left, int splits) {
  __shared__ bool is_last;
  __threadfence();  // what each thread has left
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(left, 1) == splits - 1;
    if (is_last) {
      *left = 0;
    }
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

// By a warp: the sums of the splits of a row and a query head, one after another; the first one's
// are at `first`. Lane l has four dims from 4 * l on, and in a head of more than 128 four others.
template <class T>
__device__ void add_splits(const Partials& partials, int64_t first, int splits, const Shape& shape,
                           float* factors, T* y) {
  const int lane = threadIdx.x % kWarpSize;
  const auto stats_of = [&](int split) {  // of other multiprocessors: not by way of the L1
    return __ldcg(partials.stats + first + split * shape.heads);
  };
  float largest = -INFINITY;
  for (int s = lane; s < splits; s += kWarpSize) {
    largest = fmaxf(largest, stats_of(s).x);
  }
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  float weight = 0.0f;
  for (int s = lane; s < splits; s += kWarpSize) {
    const float2 stats = stats_of(s);
    factors[s] = rescale(stats.x, largest);
    weight += factors[s] * stats.y;
  }
  weight = warp_sum(weight);
  __syncwarp();
  for (int dim = 4 * lane; dim < shape.head_dim; dim += 4 * kWarpSize) {
    float sums[4] = {};
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float4 values = __ldcg(reinterpret_cast<const float4*>(
          partials.values + (first + s * shape.heads) * shape.head_dim + dim));
      sums[0] += factors[s] * values.x;
      sums[1] += factors[s] * values.y;
      sums[2] += factors[s] * values.z;
      sums[3] += factors[s] * values.w;
    }
    for (int i = 0; i < 4; ++i) {
      y[dim + i] = from_f32<T>(sums[i] / weight);
    }
  }
  __syncwarp();  // before the factors of another head
}

// Element `dim` of a head, rotated if there are angles.
template <class T>
__device__ T rotated(const T* head, int dim, const float* angles, int head_dim) {
  if (angles == nullptr) {
    return head[dim];
  }
  const int half = head_dim / 2;
  const bool is_low = dim < half;
  const int i = is_low ? dim : dim - half;
  const Rotated both = rotate(f32_of(head[i]), f32_of(head[half + i]), angles[i], angles[half + i]);
  return from_f32<T>(is_low ? both.low : both.high);
}

// The norms, and then the rotation, of a block's query heads and of its new key, if it has one. The
// warps take them by turns, the key after the queries; all that a warp loads is on its way at once.
template <class T, int kTiles>
class NormedHeads {
 public:
  __device__ NormedHeads(int heads, bool has_key) : heads_(heads), has_key_(has_key) {}

  // What does not depend on the kernels before.
  __device__ void load_weights(const Appended<T>& appended, int half) {
    q_norm_ = load_head<kTiles>(appended.q_norm, half);
    if (has_key_ && warp() == heads_ % kWarps) {
      k_norm_ = load_head<kTiles>(appended.k_norm, half);
    }
  }

  // angles: null for no rotation.
  __device__ void load(const T* q, const T* k, const float* angles, int half) {
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      if (has(n)) {
        raw_[n] = load_head<kTiles>(is_key(n) ? k : q + head(n) * 2 * half, half);
      }
    }
    rotates_ = angles != nullptr;
    if (rotates_) {
      angles_ = load_head<kTiles>(angles, half);
    }
  }

  template <int kQStride>
  __device__ void store(float epsilon, int half, T (*q)[kQStride], T* k) const {
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      if (has(n)) {
        WarpHead<kTiles, T> weight = q_norm_;
        if (is_key(n)) {
          weight = k_norm_;
        }
        WarpHead<kTiles, float> x = normalised(raw_[n], weight, half, epsilon);
        if (rotates_) {
          rotate_head(x, angles_);
        }
        store_head(x, half, is_key(n) ? k : q[head(n)]);
      }
    }
  }

 private:
  static constexpr int kHeads = kHeadsPerBlock / kWarps + 1;  // of a warp, the key among them

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
  __device__ static int head(int n) { return warp() + n * kWarps; }
  __device__ bool is_key(int n) const { return head(n) == heads_; }
  __device__ bool has(int n) const { return head(n) < heads_ || (is_key(n) && has_key_); }

  int heads_;
  bool has_key_;
  bool rotates_ = false;
  WarpHead<kTiles, T> q_norm_;
  WarpHead<kTiles, T> k_norm_;
  WarpHead<kTiles, T> raw_[kHeads];
  WarpHead<kTiles, float> angles_;
};

// One block of kWarps warps for a request's row, a key/value head with up to kHeadsPerBlock of its
// query heads (blockIdx.x = (row * kv_heads + kv_head) * pieces + piece) and a range of the
// request's pages (split blockIdx.y). Its warps take the pages of the range in turn, each with its
// own sums, which they join in shared memory (22 KiB at head_dim 128, 41 KiB at 256). Blocks that
// run side by side have the pieces of one group: all but the first find k and v in the L2.
// The keys of a warp's next page are on their way while it multiplies the values of this one.
//
// For MHA seven of the eight columns of an mma are idle; tensor cores are chosen there too, because
// a page takes them less than a sixth of the time that it takes the memory (by the peak rates of
// sm_90), and needs fewer instructions than plain multiplications would.
//
// If the kernel puts the keys and values of its step in their pages by itself, it may read all
// pages early, and the first ones are there when q comes.
template <class T, int kTiles, Append kAppend>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor(kTiles))
    attention_decode_kernel(Operands<T> in, Appended<T> appended, Partials partials, Shape shape) {
  launch_dependents();
  constexpr bool kAppends = kAppend != Append::nothing;
  constexpr bool kNorms = kAppend == Append::normed_tokens;
  constexpr int kDims = kTiles * kTileDims;
  constexpr int kQStride = kDims + 32;     // the quads of a quarter-warp read different banks
  constexpr int kValueStride = kDims + 8;  // two-way conflicts, the least for rows of float4
  __shared__ alignas(16) T shared_q[kHeadsPerBlock][kQStride];
  __shared__ alignas(16) T shared_key[kDims];  // of the appended token
  __shared__ alignas(16) T shared_value[kDims];
  __shared__ float shared_largest[kWarps][kHeadsPerBlock];
  __shared__ float shared_weight[kWarps][kHeadsPerBlock];
  __shared__ alignas(16) float shared_values[kWarps][kHeadsPerBlock][kValueStride];

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int piece = blockIdx.x % shape.pieces;
  const int kv_head = blockIdx.x / shape.pieces % shape.kv_heads;
  const int64_t row = blockIdx.x / shape.pieces / shape.kv_heads;
  const int group = shape.heads / shape.kv_heads;
  const int first_head = kv_head * group + piece * kHeadsPerBlock;
  const int heads = min(kHeadsPerBlock, group - piece * kHeadsPerBlock);
  const int splits = gridDim.y;
  const int head_dim = shape.head_dim;

  // The tables of a step, and all keys and values but those of its own token, are there from the
  // begin; pages that kv_append() is about to write are not read early.
  const int kv_length = in.kv_length[row];
  const SplitPages pages(kv_length, shape.window, splits);
  const int begin = pages.first + static_cast<int>(blockIdx.y) * pages.per_split;
  const int end = min(begin + pages.per_split, pages.end);
  if (blockIdx.y > 0 && begin >= end) {
    wait_on_dependencies();
    return;  // the others know
  }
  const int used_splits = max(pages.used_splits(), 1);
  const int* table = in.page_table + row * shape.table_stride;
  const int64_t head_elements = static_cast<int64_t>(kTokens) * head_dim;
  const auto offset = [&](int page) {
    return (static_cast<int64_t>(page) * shape.kv_heads + kv_head) * head_elements;
  };

  const auto tokens_of = [&](int i) { return min(kTokens, kv_length - i * kTokens); };

  WarpAttention<T, kTiles> attention(lane);
  int page = 0;
  int next_page = 0;
  const bool has_page = begin + warp < end;
  const bool has_new = kAppends && begin < end && end == pages.end;
  const int new_page = has_new ? table[pages.end - 1] : 0;
  const int last_slot = (kv_length - 1) % kTokens;
  const bool reads_before_wait = kAppends || begin + warp + 1 < pages.end;
  if (has_page) {
    page = table[begin + warp];
  }
  if (begin + warp + kWarps < end) {
    next_page = table[begin + warp + kWarps];
  }
  const auto load_first_page = [&] {
    attention.load_keys(in.k_pages + offset(page), head_dim);
    if constexpr (kAppends) {
      attention.load_values(in.v_pages + offset(page), tokens_of(begin + warp), head_dim);
    }
  };
  if (has_page && reads_before_wait) {
    load_first_page();
  }
  NormedHeads<T, kTiles> normed(heads, has_new);
  if constexpr (kNorms) {
    normed.load_weights(appended, head_dim / 2);
    for (int i = threadIdx.x; i < kHeadsPerBlock * kDims; i += kThreads) {
      if (i / kDims >= heads || i % kDims >= head_dim) {
        shared_q[i / kDims][i % kDims] = from_f32<T>(0.0f);
      }
    }
  }
  wait_on_dependencies();
  if (has_page && !reads_before_wait) {
    load_first_page();
  }
  const float* const angles = !kAppends || appended.cos_sin == nullptr
                                  ? nullptr
                                  : appended.cos_sin + row * appended.cos_sin_stride;
  // Of the appended token; loaded before the wait for q.
  constexpr int kNewDims = (kDims + kThreads - 1) / kThreads;  // a thread's
  T new_key[kNewDims];
  T new_value[kNewDims];
  if constexpr (kNorms) {
    normed.load(in.q + row * shape.q_stride + first_head * head_dim,
                appended.k + row * appended.k_stride + kv_head * head_dim, angles, head_dim / 2);
  }
  if (has_new) {
#pragma unroll
    for (int n = 0; n < kNewDims; ++n) {
      const int dim = static_cast<int>(threadIdx.x) + n * kThreads;
      if (dim < head_dim) {
        if constexpr (!kNorms) {
          new_key[n] = rotated(appended.k + row * appended.k_stride + kv_head * head_dim, dim,
                               angles, head_dim);
        }
        new_value[n] = appended.v[row * appended.v_stride + kv_head * head_dim + dim];
      }
    }
  }
  if constexpr (kNorms) {
    normed.store(appended.norm_epsilon, head_dim / 2, shared_q, shared_key);
  } else {
    for (int i = threadIdx.x; i < kHeadsPerBlock * kDims; i += kThreads) {
      const int head = i / kDims;
      const int dim = i % kDims;
      shared_q[head][dim] =
          head < heads && dim < head_dim
              ? rotated(in.q + row * shape.q_stride + (first_head + head) * head_dim, dim, angles,
                        head_dim)
              : from_f32<T>(0.0f);
    }
  }
  if (has_new) {
#pragma unroll
    for (int n = 0; n < kNewDims; ++n) {
      const int dim = static_cast<int>(threadIdx.x) + n * kThreads;
      if (dim < head_dim) {
        if constexpr (!kNorms) {
          shared_key[dim] = new_key[n];
        }
        shared_value[dim] = new_value[n];
      }
    }
  }
  __syncthreads();

  for (int i = begin + warp; i < end; i += kWarps) {
    const int tokens = tokens_of(i);
    if (!kAppends || i != begin + warp) {
      attention.load_values(in.v_pages + offset(page), tokens, head_dim);
    }
    const bool ends_in_new = has_new && i == pages.end - 1;
    if (ends_in_new) {
      attention.replace_key(last_slot, shared_key, head_dim);
    }
    attention.compute_scores(shared_q[lane / 4], tokens, shape.scale);
    page = next_page;
    if (i + kWarps < end) {
      attention.load_keys(in.k_pages + offset(page), head_dim);
    }
    if (i + 2 * kWarps < end) {
      next_page = table[i + 2 * kWarps];
    }
    if (ends_in_new) {
      attention.replace_value(last_slot, shared_value, head_dim);
    }
    const int before_window = kv_length - i * kTokens - shape.window;
    if (before_window > 0) [[unlikely]] {
      attention.leave_out(before_window);
    }
    attention.add_page();
  }
  if (has_new && piece == 0) {
    const int64_t to = offset(new_page) + last_slot * head_dim;
    for (int dim = threadIdx.x; dim < head_dim; dim += kThreads) {
      in.k_pages[to + dim] = shared_key[dim];
      in.v_pages[to + dim] = shared_value[dim];
    }
  }

  attention.store(heads, shared_largest[warp], shared_weight[warp], shared_values[warp][0],
                  kValueStride);
  __syncthreads();
  for (int head = warp; head < heads; head += kWarps) {
    float largest = shared_largest[0][head];
    for (int w = 1; w < kWarps; ++w) {
      largest = fmaxf(largest, shared_largest[w][head]);
    }
    float factors[kWarps];
    float weight = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      factors[w] = rescale(shared_largest[w][head], largest);
      weight += factors[w] * shared_weight[w][head];
    }
    const int64_t partial = (row * splits + blockIdx.y) * shape.heads + first_head + head;
    for (int dim = lane; dim < head_dim; dim += kWarpSize) {
      float value = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        value += factors[w] * shared_values[w][head][dim];
      }
      if (used_splits > 1) {
        partials.values[partial * head_dim + dim] = value;
      } else {
        in.y[row * shape.y_stride + (first_head + head) * head_dim + dim] =
            from_f32<T>(kv_length == 0 ? 0.0f : value / weight);
      }
    }
    if (used_splits > 1 && lane == 0) {
      partials.stats[partial] = make_float2(largest, weight);
    }
  }
  if (used_splits == 1 || !is_last_split(partials.left + blockIdx.x, used_splits)) {
    return;
  }
  __shared__ float shared_factors[kWarps][kMaxSplits];
  for (int head = warp; head < heads; head += kWarps) {
    const int64_t query_head = first_head + head;
    add_splits(partials, row * splits * shape.heads + query_head, used_splits, shape,
               shared_factors[warp], in.y + row * shape.y_stride + query_head * head_dim);
  }
}

// What a split launch aims at: as many as run at once, on a larger device fewer.
int64_t blocks_at_once(int tiles, const ExecContext& ctx) {
  return std::min<int64_t>(
      int64_t{cuda_state(ctx).multiprocessors} * blocks_per_multiprocessor(tiles), kMaxBlocks);
}

// The tables of a captured launch vary, so that only what does not vary may decide: a long request
// among so many short ones that they fill the GPU is not split.
int64_t splits_for(int64_t blocks_per_split, int tiles, const ExecContext& ctx) {
  return std::clamp<int64_t>(blocks_at_once(tiles, ctx) / blocks_per_split, 1, kMaxSplits);
}

template <class T, int kTiles>
void start(const Operands<T>& in, const Appended<T>& appended, int64_t rows, const Shape& shape,
           ExecContext& ctx) {
  const int64_t blocks = rows * shape.kv_heads * shape.pieces;
  const int64_t splits = splits_for(blocks, kTiles, ctx);
  auto scratch = ctx.workspace.scope();
  Partials partials{};
  if (splits > 1) {
    const int64_t parts = rows * splits;
    partials.values =
        scratch.tensor(DType::f32, {parts, shape.heads, shape.head_dim}).data<float>();
    partials.stats =
        static_cast<float2*>(scratch.tensor(DType::f32, {parts, shape.heads, 2}).raw());
    partials.left = cuda_queue(ctx).counters;
    static_assert(kMaxBlocks / 2 <= CudaQueue::kCounters);  // with two splits or more
  }
  launch(ctx,
         appended.k == nullptr        ? attention_decode_kernel<T, kTiles, Append::nothing>
         : appended.q_norm == nullptr ? attention_decode_kernel<T, kTiles, Append::tokens>
                                      : attention_decode_kernel<T, kTiles, Append::normed_tokens>,
         {.blocks = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(splits)),
          .threads = kThreads,
          .shared_bytes = 0,
          .pdl = true},
         in, appended, partials, shape);
}

int window_of(const AttentionParams& params) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return static_cast<int>(params.window == 0 ? kMost : std::min(params.window, kMost));
}

constexpr int tiles_of(int64_t head_dim) {
  return head_dim <= kTileDims ? 1 : head_dim <= 2 * kTileDims ? 2 : 4;
}

}  // namespace

void attention_decode_cuda(const Tensor& q, const NewTokens& tokens, const KvLayer& kv,
                           const PagedBatch& batch, const AttentionParams& params, const Tensor& y,
                           ExecContext& ctx) {
  const int64_t rows = q.size(0);
  const int64_t kv_heads = kv.k.size(1);
  const int64_t head_dim = kv.k.size(3);
  const int64_t heads = q.size(1) / head_dim;
  require(batch.requests() == rows, "attention: a decode step has {} rows for {} requests", rows,
          batch.requests());
  const Shape shape{.heads = static_cast<int>(heads),
                    .kv_heads = static_cast<int>(kv_heads),
                    .head_dim = static_cast<int>(head_dim),
                    .pieces = static_cast<int>(pieces_of(heads, kv_heads)),
                    .q_stride = q.row_stride(),
                    .y_stride = y.row_stride(),
                    .table_stride = batch.page_table.row_stride(),
                    .scale = params.scale,
                    .window = window_of(params)};
  const Tensor& cos_sin = tokens.transform.cos_sin;
  const HeadNorms& norms = tokens.transform.norms;
  visit_activation(q.dtype(), [&]<class T>(T) {
    const Operands<T> in{.q = static_cast<const T*>(q.raw()),
                         .k_pages = static_cast<T*>(kv.k.raw()),
                         .v_pages = static_cast<T*>(kv.v.raw()),
                         .kv_length = static_cast<const int*>(batch.kv_length.raw()),
                         .page_table = static_cast<const int*>(batch.page_table.raw()),
                         .y = static_cast<T*>(y.raw())};
    const Appended<T> appended{.k = static_cast<const T*>(tokens.k.raw()),
                               .v = static_cast<const T*>(tokens.v.raw()),
                               .cos_sin = static_cast<const float*>(cos_sin.raw()),
                               .k_stride = tokens.k.row_stride(),
                               .v_stride = tokens.v.row_stride(),
                               .cos_sin_stride = cos_sin.row_stride(),
                               .q_norm = static_cast<const T*>(norms.q.raw()),
                               .k_norm = static_cast<const T*>(norms.k.raw()),
                               .norm_epsilon = norms.epsilon};
    switch (tiles_of(head_dim)) {
      case 1:
        start<T, 1>(in, appended, rows, shape, ctx);
        break;
      case 2:
        start<T, 2>(in, appended, rows, shape, ctx);
        break;
      default:
        start<T, 4>(in, appended, rows, shape, ctx);
    }
  });
}

bool attention_decode_is_one_wave(int64_t rows, const KvLayer& kv, int64_t heads,
                                  const ExecContext& ctx) {
  const int64_t kv_heads = kv.k.size(1);
  return rows * kv_heads * pieces_of(heads, kv_heads) <=
         blocks_at_once(tiles_of(kv.k.size(3)), ctx);
}

}  // namespace sparsellm
