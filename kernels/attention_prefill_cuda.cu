#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention_cuda.cuh"
#include "kernels/base/launch.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/copy_groups.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/mma.cuh"

namespace sparsellm {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kPage = static_cast<int>(kPageSize);
// Keys and values are taken in blocks that start at multiples of kKeys whatever the tile, so that
// the order of a row's sums is always the same. Each warp loads a page of them.
constexpr int kKeys = kWarps * kPage;
constexpr int kChunk = 8;  // elements of 16 bytes: the unit of loads and of the swizzle
// The largest score of an item whose window begins in a later block of keys. Not -infinity, from
// which masked scores have no distance.
constexpr float kNoScore = -FLT_MAX;

// A query row and a query head of the group that shares a key/value head make an item. The items of
// a request for a key/value head are numbered: row * group + head within the group.
template <class T>
struct Problem {
  const T* q;
  const T* k_pages;
  const T* v_pages;
  T* y;
  const int* query_start;
  const int* kv_length;
  const int* page_table;
  int64_t q_stride;
  int64_t y_stride;
  int64_t table_stride;
  int requests;
  int kv_heads;
  int group;  // query heads for each key/value head
  int head_dim;
  float exponent_scale;  // the scale of the scores times log2(e)
  bool q_aligned;        // every head of every row starts at a multiple of 16 bytes
  bool y_aligned;
  int window;  // AttentionParams::window
};

template <class Type, int kPaddedDim, int kFragmentsPerWarp, bool kHasWindow>
struct Config {
  using T = Type;
  static constexpr bool kWindow = kHasWindow;           // else Problem::window is not looked at
  static constexpr int kDim = kPaddedDim;               // head_dim, padded with zeros
  static constexpr int kFragments = kFragmentsPerWarp;  // of 16 items
  static constexpr int kWarpItems = 16 * kFragments;
  static constexpr int kItems = kWarps * kWarpItems;
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kStride = static_cast<int>(std::bit_ceil(static_cast<unsigned>(kDim)));
  static constexpr int kRowBytes = kStride * static_cast<int>(sizeof(T));
  static constexpr int kSharedBytes = (kItems + 2 * kKeys) * kRowBytes;
  // On a multiprocessor: as many as leave a thread the registers for its sums and scores.
  static constexpr int kBlocks = kFragments > 1 || kDim > 128 ? 2 : kDim > 64 ? 3 : 4;
  static_assert(kDim % 16 == 0 && kStride % (8 * kChunk) == 0);  // steps of 16, the swizzle of 8
};

// What a block works on.
struct Tile {
  const int* pages;  // the request's row of the page table
  int first_row;     // of the request
  int kv_head;
  int first_item;
  int items;           // of the request; the tile's last may lie beyond
  int first_position;  // of the request's first row
  int kv_begin;        // the tile's first row sees the tokens from this one on
  int kv_end;          // the tile's last row sees the tokens before this one

  __device__ int position(int item, int group) const { return first_position + item / group; }
};

// Four 8x8 matrices; lane l names row l % 8 of matrix l / 8.
__device__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ void load_matrices_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory; zeros, and nothing is read, if not `inside`.
__device__ void copy_chunk_async(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
               : "memory");
}

// 2^x; exactly 1 for 0 and 0 for -infinity.
__device__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two values in a register, the first in the low half.
__device__ uint32_t packed(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ uint32_t packed(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <class T>
__device__ float unpacked(uint32_t pair, int half) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * half));
  return f32_of(*reinterpret_cast<const T*>(&bits));
}

// The pair with 0 in place of infinity and NaN, whose exponents are all ones.
__device__ uint32_t finite_or_zero(__half, uint32_t pair) {
  return pair & ~__vcmpeq2(pair & 0x7c007c00u, 0x7c007c00u);
}
__device__ uint32_t finite_or_zero(__nv_bfloat16, uint32_t pair) {
  return pair & ~__vcmpeq2(pair & 0x7f807f80u, 0x7f807f80u);
}

// Where a chunk of a matrix in shared memory is, in elements. The chunks of eight consecutive rows
// at the same column lie in different banks.
template <class C>
__device__ int swizzled(int row, int chunk) {
  return row * C::kStride + (chunk ^ row % 8) * kChunk;
}

// Tiles are numbered without a pass over the requests: request r has the slots from
// floor(items before it / kItems) + r on, which are as many as its tiles or one more.
template <class C>
__device__ int first_slot(const Problem<typename C::T>& problem, int request) {
  return problem.query_start[request] * problem.group / C::kItems + request;
}

// The last request whose first slot is not after `slot`. Each step the lanes divide the range by
// 32.
template <class C>
__device__ int request_of_slot(const Problem<typename C::T>& problem, int slot) {
  const int lane = threadIdx.x % kWarpSize;
  int low = 0;
  int high = problem.requests;  // first_slot(low) <= slot < first_slot(high)
  while (high - low > 1) {
    const int step = (high - low + kWarpSize - 1) / kWarpSize;
    const int probe = low + lane * step;
    const bool not_after = probe < high && first_slot<C>(problem, probe) <= slot;
    low += (__popc(__ballot_sync(kAllLanes, not_after)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

// The block's tile; false if its slot has none. Within a request the tiles that see most keys come
// first, and the heads of a tile follow each other.
template <class C>
__device__ bool find_tile(const Problem<typename C::T>& problem, Tile& tile) {
  const int slot = static_cast<int>(blockIdx.x) / problem.kv_heads;
  const int request = request_of_slot<C>(problem, slot);
  const int first_row = problem.query_start[request];
  const int rows = problem.query_start[request + 1] - first_row;
  const int items = rows * problem.group;
  const int tiles = (items + C::kItems - 1) / C::kItems;
  const int index = tiles - 1 - (slot - first_slot<C>(problem, request));
  if (index < 0) {
    return false;
  }
  tile.pages = problem.page_table + request * problem.table_stride;
  tile.first_row = first_row;
  tile.kv_head = static_cast<int>(blockIdx.x) % problem.kv_heads;
  tile.first_item = index * C::kItems;
  tile.items = items;
  tile.first_position = problem.kv_length[request] - rows;
  tile.kv_begin =
      C::kWindow ? max(tile.position(tile.first_item, problem.group) - problem.window + 1, 0) : 0;
  const int last_item = min(tile.first_item + C::kItems, items) - 1;
  tile.kv_end = tile.position(last_item, problem.group) + 1;
  return true;
}

// Calls body(place in shared memory, offset in a matrix with this row stride, whether there is such
// an element) for this lane's share of the chunks of the warp's items.
template <class C, class Body>
__device__ void for_each_item_chunk(const Problem<typename C::T>& problem, const Tile& tile,
                                    int64_t stride, Body&& body) {
  const int warp = threadIdx.x / kWarpSize;
  for (int i = threadIdx.x % kWarpSize; i < C::kWarpItems * C::kChunks; i += kWarpSize) {
    const int row = warp * C::kWarpItems + i / C::kChunks;
    const int column = i % C::kChunks * kChunk;
    const int item = tile.first_item + row;
    const int head = tile.kv_head * problem.group + item % problem.group;
    const int64_t offset =
        (tile.first_row + item / problem.group) * stride + head * problem.head_dim + column;
    body(swizzled<C>(row, i % C::kChunks), offset, item < tile.items && column < problem.head_dim);
  }
}

template <class C>
__device__ void load_queries(const Problem<typename C::T>& problem, const Tile& tile,
                             typename C::T* queries) {
  using T = typename C::T;
  for_each_item_chunk<C>(problem, tile, problem.q_stride, [&](int to, int64_t from, bool inside) {
    if (problem.q_aligned) {
      copy_chunk_async(queries + to, problem.q + (inside ? from : 0), inside);
    } else {
      for (int e = 0; e < kChunk; ++e) {
        queries[to + e] = inside ? problem.q[from + e] : from_f32<T>(0.0f);
      }
    }
  });
}

template <class C>
__device__ void store_results(const Problem<typename C::T>& problem, const Tile& tile,
                              const typename C::T* results) {
  for_each_item_chunk<C>(problem, tile, problem.y_stride, [&](int from, int64_t to, bool inside) {
    if (inside && problem.y_aligned) {
      *reinterpret_cast<uint4*>(problem.y + to) = *reinterpret_cast<const uint4*>(results + from);
    } else if (inside) {
      for (int e = 0; e < kChunk; ++e) {
        problem.y[to + e] = results[from + e];
      }
    }
  });
}

// Calls body(row, chunk) for this lane's share of the page that its warp loads into a block of keys
// or values.
template <class C, class Body>
__device__ void for_each_page_chunk(Body&& body) {
  const int first_row = static_cast<int>(threadIdx.x) / kWarpSize * kPage;
#pragma unroll
  for (int n = 0; n < kPage * C::kChunks / kWarpSize; ++n) {
    const int i = n * kWarpSize + threadIdx.x % kWarpSize;
    body(first_row + i / C::kChunks, i % C::kChunks);
  }
}

// The warp's page of the block of tokens from first_token on. The table has no page for tokens from
// kv_end on.
__device__ int page_of(const Tile& tile, int first_token) {
  const int token = first_token + static_cast<int>(threadIdx.x) / kWarpSize * kPage;
  return token < tile.kv_end ? tile.pages[token / kPage] : 0;
}

// Of the first block that the tile sees, whose first pages may be wholly before its window: they
// may be others' by now, and are none (-1).
__device__ int first_page_of(const Tile& tile, int first_token) {
  const int token = first_token + static_cast<int>(threadIdx.x) / kWarpSize * kPage;
  return token + kPage > tile.kv_begin ? page_of(tile, first_token) : -1;
}

// Starts to copy the warp's page into a block of keys or values. Zeros stand for no page, for
// tokens from kv_end on, which may hold anything (0 * NaN), and pad the head.
template <class C>
__device__ void load_page(const Problem<typename C::T>& problem, const Tile& tile,
                          const typename C::T* pages, int page, int first_token,
                          typename C::T* block) {
  const int64_t head =
      static_cast<int64_t>(C::kWindow ? max(page, 0) : page) * problem.kv_heads + tile.kv_head;
  const typename C::T* tokens = pages + head * kPage * problem.head_dim;
  const int end = C::kWindow && page < 0 ? 0 : tile.kv_end;
  for_each_page_chunk<C>([&](int row, int chunk) {
    const bool inside = first_token + row < end && chunk * kChunk < problem.head_dim;
    const int from = inside ? row % kPage * problem.head_dim + chunk * kChunk : 0;
    copy_chunk_async(block + swizzled<C>(row, chunk), tokens + from, inside);
  });
}

// scores [items of the warp, kKeys] = queries * keys^T
template <class C>
__device__ void multiply_keys(const typename C::T* queries, const typename C::T* keys,
                              float (&scores)[C::kFragments][kKeys / 8][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t q_row = shared_address(queries) + lane % 16 * C::kRowBytes;
  const uint32_t k_row = shared_address(keys) + (lane % 8 + lane / 16 * 8) * C::kRowBytes;
  const int q_chunk = (lane / 16) ^ (lane % 8);
  const int k_chunk = (lane / 8 % 2) ^ (lane % 8);
#pragma unroll
  for (int step = 0; step < C::kDim / 16; ++step) {
    uint32_t a[C::kFragments][4];
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      load_matrices(a[f], q_row + f * 16 * C::kRowBytes + (q_chunk ^ 2 * step) * 16);
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 2) {
      uint32_t b[4];
      load_matrices(b, k_row + n * 8 * C::kRowBytes + (k_chunk ^ 2 * step) * 16);
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        mma<typename C::T>(scores[f][n], a[f], b[0], b[1]);
        mma<typename C::T>(scores[f][n + 1], a[f], b[2], b[3]);
      }
    }
  }
}

// sums [items of the warp, kDim] += shares * values
template <class C>
__device__ void multiply_values(const uint32_t (&shares)[C::kFragments][kKeys / 16][4],
                                const typename C::T* values,
                                float (&sums)[C::kFragments][C::kChunks][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t v_row = shared_address(values) + lane % 16 * C::kRowBytes;
  const int v_chunk = (lane / 16) ^ (lane % 8);
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
    for (int n = 0; n < C::kChunks; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, v_row + step * 16 * C::kRowBytes + (v_chunk ^ n) * 16);
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        mma<typename C::T>(sums[f][n], shares[f][step], b[0], b[1]);
        mma<typename C::T>(sums[f][n + 1], shares[f][step], b[2], b[3]);
      }
    }
  }
}

// A lane has parts of two items of each fragment of its warp: of 16 * f + lane / 4 and of the item
// 8 after it.
template <class C>
__device__ int item_of_lane(const Tile& tile, int fragment, int half) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  return tile.first_item + warp * C::kWarpItems + fragment * 16 + half * 8 + lane / 4;
}

// The scores of keys after an item's own position become -infinity.
template <class C>
__device__ void mask_scores(const Tile& tile, int group, int first_token,
                            float (&scores)[C::kFragments][kKeys / 8][4]) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = tile.position(item_of_lane<C>(tile, f, half), group) - first_token - column;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (n * 8 + e > last) {
            scores[f][n][2 * half + e] = -INFINITY;
          }
        }
      }
    }
  }
}

// Likewise those of keys before an item's window.
template <class C>
__device__ void mask_scores_before(const Tile& tile, const Problem<typename C::T>& problem,
                                   int first_token, float (&scores)[C::kFragments][kKeys / 8][4]) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = tile.position(item_of_lane<C>(tile, f, half), problem.group);
      const int first = position - problem.window + 1 - first_token - column;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (n * 8 + e < first) {
            scores[f][n][2 * half + e] = -INFINITY;
          }
        }
      }
    }
  }
}

// Sums relative to the largest score so far (online softmax, Milakov and Gimelshein 2018).
template <class C>
struct RunningSums {
  float values[C::kFragments][C::kChunks][4];
  float largest[C::kFragments][2];
  float weight[C::kFragments][2];  // the lane's part of the sum of the weights
};

// Turns scores into weights and rescales the sums. Keys that are masked change nothing, bit for
// bit: the largest score stays, the factor is 1 and the weights are 0; with a window also before an
// item's first key, since its largest score is then a number, kNoScore. The product of difference
// and scale, not the difference of products, keeps weights at or below 1 for any score. Additions
// after multiplications are not fused with them, which would be the compiler's choice and could
// differ between configurations.
template <class C>
__device__ void soften(float exponent_scale, float (&scores)[C::kFragments][kKeys / 8][4],
                       RunningSums<C>& sums) {
  bool rescale = false;
  float factors[C::kFragments][2];
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = sums.largest[f][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores[f][n][2 * half], scores[f][n][2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float factor =
          exp2_approximate(__fmul_rn(__fsub_rn(sums.largest[f][half], largest), exponent_scale));
      rescale |= factor != 1.0f;
      factors[f][half] = factor;
      sums.largest[f][half] = largest;
      float weight = __fmul_rn(sums.weight[f][half], factor);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[f][n][e] =
              exp2_approximate(__fmul_rn(__fsub_rn(scores[f][n][e], largest), exponent_scale));
          weight = __fadd_rn(weight, scores[f][n][e]);
        }
      }
      sums.weight[f][half] = weight;
    }
  }
  if (__any_sync(kAllLanes, rescale)) {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < C::kChunks; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums.values[f][n][e] = __fmul_rn(sums.values[f][n][e], factors[f][e / 2]);
        }
      }
    }
  }
}

// The weights as the first operand of multiply_values(): the layouts agree.
template <class C>
__device__ void pack(const float (&weights)[C::kFragments][kKeys / 8][4],
                     uint32_t (&shares)[C::kFragments][kKeys / 16][4]) {
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shares[f][n / 2][n % 2 * 2 + half] =
            packed(typename C::T{}, weights[f][n][2 * half], weights[f][n][2 * half + 1]);
      }
    }
  }
}

// Whether the lane's share of its warp's page of values holds an infinity or a NaN.
template <class C>
__device__ bool page_not_finite(const typename C::T* values) {
  bool found = false;
  for_each_page_chunk<C>([&](int row, int chunk) {
    const uint4 x = *reinterpret_cast<const uint4*>(values + swizzled<C>(row, chunk));
    for (uint32_t pair : {x.x, x.y, x.z, x.w}) {
      found |= finite_or_zero(typename C::T{}, pair) != pair;
    }
  });
  return found;
}

// ... and puts 0 in their places.
template <class C>
__device__ void clear_not_finite(typename C::T* values) {
  for_each_page_chunk<C>([&](int row, int chunk) {
    auto* pairs = reinterpret_cast<uint32_t*>(values + swizzled<C>(row, chunk));
    for (int i = 0; i < kChunk / 2; ++i) {
      pairs[i] = finite_or_zero(typename C::T{}, pairs[i]);
    }
  });
}

// What infinities and NaNs among the values contribute, to the items that see their keys alone: a
// weight of 0 in a matrix product would not keep them from the others.
template <class C>
__device__ void add_not_finite(const Tile& tile, const Problem<typename C::T>& problem,
                               int first_token,
                               const uint32_t (&shares)[C::kFragments][kKeys / 16][4],
                               const typename C::T* values,
                               float (&sums)[C::kFragments][C::kChunks][4]) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll 1
  for (int key = 0; key < kKeys; ++key) {
    const int owner = lane / 4 * 4 + key % 8 / 2;  // the lane that has the key's weights
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pair = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          // A selection after the exchange: an index would force the shares out of the registers.
          const uint32_t share = __shfl_sync(kAllLanes, shares[f][n / 2][n % 2 * 2 + half], owner);
          pair = n == key / 8 ? share : pair;
        }
        const float weight = unpacked<typename C::T>(pair, key % 2);
        const int position = tile.position(item_of_lane<C>(tile, f, half), problem.group);
        const bool seen = first_token + key <= position &&
                          (!C::kWindow || first_token + key > position - problem.window);
#pragma unroll
        for (int n = 0; n < C::kChunks; ++n) {
          const uint32_t both =
              *reinterpret_cast<const uint32_t*>(values + swizzled<C>(key, n) + lane % 4 * 2);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float value = unpacked<typename C::T>(both, e);
            if (seen && !isfinite(value)) {
              sums[f][n][2 * half + e] += weight * value;
            }
          }
        }
      }
    }
  }
}

// Divides by the sum of the weights and rounds into `results`, the rows of the warp's items. Items
// that saw no key get 0; scores of -infinity alone, whose weights are 0 next to kNoScore, NaN. The
// addition of 0 makes -0 a +0: which of them underflowed sums become depends on how many zeros were
// added.
template <class C>
__device__ void round_results(const Tile& tile, int group, const RunningSums<C>& sums,
                              typename C::T* results) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float weight = sums.weight[f][half];
      weight = __fadd_rn(weight, __shfl_xor_sync(kAllLanes, weight, 1));
      weight = __fadd_rn(weight, __shfl_xor_sync(kAllLanes, weight, 2));
      float factor = weight == 0.0f ? 0.0f : __fdiv_rn(1.0f, weight);
      if (C::kWindow && weight == 0.0f &&
          tile.position(item_of_lane<C>(tile, f, half), group) >= 0) {
        factor = NAN;
      }
#pragma unroll
      for (int n = 0; n < C::kChunks; ++n) {
        const float low = __fmaf_rn(sums.values[f][n][2 * half], factor, 0.0f);
        const float high = __fmaf_rn(sums.values[f][n][2 * half + 1], factor, 0.0f);
        *reinterpret_cast<uint32_t*>(results + swizzled<C>(f * 16 + half * 8 + lane / 4, n) +
                                     lane % 4 * 2) = packed(typename C::T{}, low, high);
      }
    }
  }
}

// A block of four warps takes a tile of kItems items of a request and a key/value head; each warp
// has kWarpItems of them, with their sums in registers, and all see each block of keys and values
// in shared memory (FlashAttention-2, Dao 2023). The block's values are copied while its scores are
// computed, the next block's keys while its values are summed up.
//   launch   (items / kItems + requests) * kv_heads blocks: enough for all slots
//   shared   kItems rows of queries (at the end: of results), kKeys rows of keys and of values
//   bounds   two or more blocks on a multiprocessor hide each other's softmax; with 128 x 128 sums
//            a thread needs about all of the 255 registers that there are for 256 threads
template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocks)
    attention_prefill_kernel(const Problem<typename C::T> problem) {
  using T = typename C::T;
  extern __shared__ uint4 shared[];
  T* queries = reinterpret_cast<T*>(shared);
  T* keys = queries + C::kItems * C::kStride;
  T* values = keys + kKeys * C::kStride;
  T* warp_queries = queries + threadIdx.x / kWarpSize * C::kWarpItems * C::kStride;

  Tile tile;
  if (!find_tile<C>(problem, tile)) {
    return;
  }
  const int tile_position = tile.position(tile.first_item, problem.group);
  const int warp_item = tile.first_item + static_cast<int>(threadIdx.x) / kWarpSize * C::kWarpItems;
  const int warp_items = min(tile.items - warp_item, C::kWarpItems);
  const int warp_position = tile.position(warp_item, problem.group);
  const int warp_end =
      warp_items > 0 ? tile.position(warp_item + warp_items - 1, problem.group) + 1 : 0;

  RunningSums<C> sums;
#pragma unroll
  for (int f = 0; f < C::kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums.largest[f][half] = C::kWindow ? kNoScore : -INFINITY;
      sums.weight[f][half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < C::kChunks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums.values[f][n][e] = 0.0f;
      }
    }
  }

  load_queries<C>(problem, tile, queries);
  const int first_token = C::kWindow ? tile.kv_begin / kKeys * kKeys : 0;
  int page = C::kWindow ? first_page_of(tile, first_token) : page_of(tile, 0);
  load_page<C>(problem, tile, problem.k_pages, page, first_token, keys);
  for (int token = first_token; token < tile.kv_end; token += kKeys) {
    wait_for_all_copies();
    __syncthreads();  // the keys are there; the values before are used up
    load_page<C>(problem, tile, problem.v_pages, page, token, values);
    const int next_page = page_of(tile, token + kKeys);
    const bool active =
        token < warp_end && (!C::kWindow || token + kKeys > warp_position - problem.window + 1);
    uint32_t shares[C::kFragments][kKeys / 16][4] = {};
    if (active) {
      float scores[C::kFragments][kKeys / 8][4] = {};
      multiply_keys<C>(warp_queries, keys, scores);
      if (token + kKeys - 1 > warp_position) {
        mask_scores<C>(tile, problem.group, token, scores);
      }
      if (C::kWindow && token < warp_end - problem.window) {
        mask_scores_before<C>(tile, problem, token, scores);
      }
      soften<C>(problem.exponent_scale, scores, sums);
      pack<C>(scores, shares);
    }
    wait_for_all_copies();
    // What not all items of the tile see must be finite.
    const bool all_seen = token + kKeys - 1 <= tile_position &&
                          (!C::kWindow || token >= tile.kv_end - problem.window);
    const bool hazard = !all_seen && page_not_finite<C>(values);
    const bool any_hazard = __syncthreads_or(hazard);  // the values are there; the keys are used up
    if (token + kKeys < tile.kv_end) {
      load_page<C>(problem, tile, problem.k_pages, next_page, token + kKeys, keys);
    }
    page = next_page;
    if (any_hazard) {
      if (active) {
        add_not_finite<C>(tile, problem, token, shares, values, sums.values);
      }
      __syncthreads();
      clear_not_finite<C>(values);
      __syncthreads();
    }
    if (active) {
      multiply_values<C>(shares, values, sums.values);
    }
  }

  wait_for_all_copies();  // of the queries, where there were no keys
  __syncwarp();
  round_results<C>(tile, problem.group, sums, warp_queries);
  __syncwarp();
  store_results<C>(problem, tile, queries);
}

template <class C>
void start(const Problem<typename C::T>& problem, int64_t tokens, ExecContext& ctx) {
  const auto kernel = attention_prefill_kernel<C>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  const int64_t slots = tokens * problem.group / C::kItems + problem.requests;
  launch(ctx, kernel,
         {.blocks = dim3(static_cast<unsigned>(slots * problem.kv_heads)),
          .threads = kThreads,
          .shared_bytes = C::kSharedBytes},
         problem);
}

// The number of items of a tile changes no bits. Larger tiles need less bandwidth, but must be full
// and enough for all multiprocessors.
template <class T, int kDim, bool kWindow>
void start_best(const Problem<T>& problem, int64_t tokens, ExecContext& ctx) {
  using Small = Config<T, kDim, 1, kWindow>;
  if constexpr (kDim <= 128) {
    using Large = Config<T, kDim, 2, kWindow>;
    const int64_t items = tokens * problem.group;
    if (items > problem.requests * Small::kItems &&
        items / Large::kItems * problem.kv_heads >= cuda_state(ctx).multiprocessors) {
      return start<Large>(problem, tokens, ctx);
    }
  }
  start<Small>(problem, tokens, ctx);
}

// A kernel of its own for windows: what they need would cost the others registers.
template <class T, int kDim>
void start_for_window(const Problem<T>& problem, int64_t tokens, ExecContext& ctx) {
  if (problem.window == 0) {
    start_best<T, kDim, false>(problem, tokens, ctx);
  } else {
    start_best<T, kDim, true>(problem, tokens, ctx);
  }
}

// Whether 16 bytes can be moved at once at the start of every head of every row.
bool rows_aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0 && x.row_stride() % kChunk == 0;
}

}  // namespace

void attention_prefill_cuda(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                            const AttentionParams& params, const Tensor& y, ExecContext& ctx) {
  require(rows_aligned(kv.k) && rows_aligned(kv.v),
          "attention: the pages of k or v do not start at a multiple of 16 bytes");
  constexpr float kLog2E = 1.44269504f;
  const int64_t kv_heads = kv.k.size(1);
  const int64_t head_dim = kv.k.size(3);
  visit_activation(q.dtype(), [&]<class T>(T) {
    const Problem<T> problem{.q = static_cast<const T*>(q.raw()),
                             .k_pages = static_cast<const T*>(kv.k.raw()),
                             .v_pages = static_cast<const T*>(kv.v.raw()),
                             .y = static_cast<T*>(y.raw()),
                             .query_start = static_cast<const int*>(batch.query_start.raw()),
                             .kv_length = static_cast<const int*>(batch.kv_length.raw()),
                             .page_table = static_cast<const int*>(batch.page_table.raw()),
                             .q_stride = q.row_stride(),
                             .y_stride = y.row_stride(),
                             .table_stride = batch.page_table.row_stride(),
                             .requests = static_cast<int>(batch.requests()),
                             .kv_heads = static_cast<int>(kv_heads),
                             .group = static_cast<int>(q.size(1) / head_dim / kv_heads),
                             .head_dim = static_cast<int>(head_dim),
                             .exponent_scale = params.scale * kLog2E,
                             .q_aligned = rows_aligned(q),
                             .y_aligned = rows_aligned(y),
                             .window = static_cast<int>(std::min<int64_t>(
                                 params.window, std::numeric_limits<int>::max()))};
    if (head_dim <= 64) {
      start_for_window<T, 64>(problem, batch.tokens(), ctx);
    } else if (head_dim <= 96) {
      start_for_window<T, 96>(problem, batch.tokens(), ctx);
    } else if (head_dim <= 128) {
      start_for_window<T, 128>(problem, batch.tokens(), ctx);
    } else {
      start_for_window<T, 256>(problem, batch.tokens(), ctx);
    }
  });
}

}  // namespace sparsellm
