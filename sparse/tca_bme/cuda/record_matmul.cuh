#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/quotient.cuh"
#include "sparse/tca_bme/cuda/record_choices.h"
#include "sparse/tca_bme/cuda/record_product.cuh"
#include "sparse/tca_bme/cuda/row_prefetch.cuh"
#include "sparse/tca_bme/format/record_sizes.h"

namespace sparsellm::tca_bme {

constexpr int kBarrierBytes = 1024;
constexpr int kMaxWarps = 16;
constexpr int kMaxStages = 6;
constexpr int kRingUnit = 128;                          // where a record of an uneven matrix begins
constexpr int kMaxRingUnits = 1023;                     // 10 bits for each of kMaxStages begins
constexpr int kPieces = 4;                              // in which x arrives
constexpr int kXBarriers = kMaxWarps * kMaxStages * 8;  // after those of the stages
constexpr int kReductionBarrier = kXBarriers + kPieces * 8;

// y [tokens, rows] = x [tokens, columns] * W^T. Clusters of `split` blocks share the row blocks of
// W: evenly or, if the matrix is uneven, by what they cost (record_shares()). Within a cluster the
// record columns, K, are cut into split * passes parts (split-K); block `rank` takes parts rank *
// passes, ..., one after the other, and holds the columns of x that belong to one of them. Of each
// part, a warp takes an equal share of the (row block, record column) pairs, columns fastest
// (Stream-K within a block): warps never wait for each other. When a warp leaves a row block, it
// sends its partial sums, a tile, to the reduction buffers of the blocks of the cluster: each of
// them gets an equal share of every tile, and in the end adds what it got, in an order that follows
// from how the product is cut up.
//
// Each warp is its own producer and consumer, with a ring in shared memory: of stages of one size,
// one for each record in flight, or, if the matrix has records that are much larger than others
// (UNEVEN), of bytes, in which records lie one after the other; the warp then keeps a queue of
// where they begin. A barrier belongs to each record in flight, in turn.
struct Parameters {
  const uint8_t* records;
  const uint32_t* starts;
  const void* x;
  void* y;
  const void* bias;
  const float* scales;       // of rows, if the values have any
  float4* global_reduction;  // buffers of all blocks, if they are in global memory, else null
  int64_t x_stride, y_stride;
  int rows, columns, tokens;
  int record_columns;
  int group;  // columns that share a scale in records, if they do
  int split, log_split, passes;
  int warps;                       // 1 or 3 times a power of two,
  int log_warps;                   // which is this
  int blocks_each, blocks_more;    // row blocks of a cluster; the first blocks_more have one more
  int columns_each, columns_more;  // record columns of a part, likewise
  uint32_t inverse[2];             // of columns_each and of columns_each + 1, for quotient()
  uint32_t token_inverse;          // of tokens
  int stages, stage_bytes;
  int tiles;                                    // at most, that the warps of a block send in a pass
  int owners_at, reduction_at, x_at, rings_at;  // byte offsets in shared memory
  bool relu;
  bool x_aligned;           // to 16 bytes, each row
  int records_before_wait;  // that each warp requests before x, which with PDL may not be there yet
  int prefetched_records;   // of each warp, to the L2
};
struct UnevenParameters : Parameters {
  int ring_units;                     // of kRingUnit bytes, of a warp
  int first_block[kMaxClusters + 1];  // of each cluster, and the number of row blocks
};
template <bool UNEVEN>
using ParametersOf = std::conditional_t<UNEVEN, UnevenParameters, Parameters>;

struct Span {
  int first, count;
};
__device__ inline Span row_blocks_of(const UnevenParameters& p, int cluster) {
  return {p.first_block[cluster], p.first_block[cluster + 1] - p.first_block[cluster]};
}
__device__ inline Span row_blocks_of(const Parameters& p, int cluster) {
  return {cluster * p.blocks_each + min(cluster, p.blocks_more),
          p.blocks_each + (cluster < p.blocks_more)};
}
__device__ inline Span columns_of(const Parameters& p, int part) {
  return {part * p.columns_each + min(part, p.columns_more),
          p.columns_each + (part < p.columns_more)};
}
// Of `items`, those of a warp.
__device__ inline Span share_of(const Parameters& p, int items, int warp) {
  const auto begin = [&](int w) {  // items * w / warps
    const uint32_t quotient = static_cast<uint32_t>(items * w) >> p.log_warps;
    constexpr uint32_t kThird = 0x55555556;  // exact below 2^31
    return static_cast<int>(p.warps >> p.log_warps == 3 ? __umulhi(quotient, kThird) : quotient);
  };
  const int first = begin(warp);
  return {first, begin(warp + 1) - first};
}
// item / columns, for the columns of a part
__device__ inline int row_block_of(const Parameters& p, int item, int columns) {
  return quotient(item, p.inverse[columns - p.columns_each]);
}
// Where a warp begins with what it has of a part. Where x is large, all warps that have the begin
// of a row block begin there, and so need the same piece of x first. The rest, up to there, comes
// last.
template <class PRODUCT>
__device__ inline int middle_of(const Parameters& p, const Span& mine, int columns) {
  if constexpr (PRODUCT::kTokens <= 8) {
    return mine.first;
  } else {
    const int middle = row_block_of(p, mine.first + columns - 1, columns) * columns;
    return middle < mine.first + mine.count ? middle : mine.first;
  }
}
// The first and the last of the warps that have items of row block j: bits 0 to 7 and 8 to 15.
__device__ inline uint32_t owners_of(const Parameters& p, int blocks, int columns, int j) {
  const uint32_t items = blocks * columns;
  const uint32_t first = ((j * columns + 1) * p.warps - 1) / items;
  const uint32_t last = ((j + 1) * columns * p.warps - 1) / items;
  return first | last << 8;
}

// PRODUCT: how a record is multiplied (record_product.cuh). UNEVEN: row blocks may be shared
// unevenly, and records may have any size up to that of a warp's ring.
template <class PRODUCT, bool UNEVEN>
__global__ void __launch_bounds__(PRODUCT::kMaxThreads, 1)
    record_matmul_kernel(const __grid_constant__ ParametersOf<UNEVEN> p) {
#if __CUDA_ARCH__ >= 900
  using T = typename PRODUCT::Element;
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr int kRecordColumns = PRODUCT::kRecordColumns;
  constexpr int kFragments = PRODUCT::kFragments;
  constexpr int kTileUnits = kFragments * 32;  // of 16 bytes
  constexpr int kLogTileUnits = std::countr_zero(static_cast<unsigned>(kTileUnits));
  static_assert(1 << kLogTileUnits == kTileUnits);
  const int lane = threadIdx.x & 31;
  const int warp = uniform_warp();
  const int warps = p.warps;
  const int rank = p.split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const Span blocks = row_blocks_of(p, p.split > 1 ? static_cast<int>(cluster_id()) : blockIdx.x);

  const uint32_t shared0 = shared_address(shared);
  const uint32_t full = shared0 + warp * kMaxStages * 8;
  const uint32_t x_full = shared0 + kXBarriers;
  const uint32_t reduction_full = shared0 + kReductionBarrier;
  const uint32_t x0 = shared0 + p.x_at;
  const uint32_t pitch =
      (p.columns_each + (p.columns_more != 0)) * (kRecordColumns * 2) + PRODUCT::kXPadding;
  uint32_t ring0 = shared0 + p.rings_at;
  if constexpr (UNEVEN) {
    ring0 += warp * p.ring_units * kRingUnit;
  } else {
    ring0 += warp * p.stages * p.stage_bytes;
  }

  // What is fetched next: each lane has the table entry of one of the next `loaded` records, and of
  // one of those after them, to hide the latency of the table.
  struct Entries {
    uint32_t start = 0, end = 0;
    int loaded = 0;
  };
  struct {
    int pass = -1, next = 0, end = 0, used = 0;
    Span rest{};  // of the pass, that comes last
    Span columns{};
    Entries current, ahead;
  } fetch;
  const auto load_table = [&] {
    while (fetch.next == fetch.end && (fetch.rest.count != 0 || ++fetch.pass < p.passes)) {
      Span mine = fetch.rest;
      fetch.rest.count = 0;
      if (mine.count == 0) {
        fetch.columns = columns_of(p, rank * p.passes + fetch.pass);
        mine = share_of(p, blocks.count * fetch.columns.count, warp);
        const int middle = middle_of<PRODUCT>(p, mine, fetch.columns.count);
        fetch.rest = {mine.first, middle - mine.first};
        mine = {middle, mine.count - fetch.rest.count};
      }
      fetch.next = mine.first;
      fetch.end = mine.first + mine.count;
    }
    Entries e;
    e.loaded = min(fetch.end - fetch.next, 32);
    if (lane < e.loaded) {
      const int item = fetch.next + lane;
      const int j = row_block_of(p, item, fetch.columns.count);
      const uint32_t* const entry = p.starts +
                                    static_cast<int64_t>(blocks.first + j) * p.record_columns +
                                    fetch.columns.first + (item - j * fetch.columns.count);
      e.start = __ldg(entry);
      e.end = __ldg(entry + 1);
    }
    fetch.next += e.loaded;
    return e;
  };
  fetch.current = load_table();
  fetch.ahead = load_table();

  uint16_t* const owners = reinterpret_cast<uint16_t*>(shared + p.owners_at);
  for (int i = threadIdx.x; i < 2 * blocks.count; i += blockDim.x) {
    owners[i] = owners_of(p, blocks.count, p.columns_each + (i & 1), i >> 1);
  }
  constexpr int kPrefetches = kRecordRows / kPrefetchedRows;
  for (int i = threadIdx.x; i < kPrefetches * blocks.count; i += blockDim.x) {
    prefetch_rows<T>(p, (kPrefetches * blocks.first + i) * kPrefetchedRows);
  }
  if (lane < p.stages) {
    barrier_init(full + lane * 8, 1);
  }
  if (threadIdx.x < kPieces) {
    barrier_init(x_full + threadIdx.x * 8, blockDim.x);
  }
  if (threadIdx.x == 0) {
    barrier_init(reduction_full, p.split * warps);
  }
  barriers_ready();
  __syncthreads();
  cluster_started();
  launch_dependents();

  // x of a pass, piece by piece; columns after the last as zeros. Tokens after the last get no x:
  // whatever is in their place reaches only columns of the product that are not stored. By all
  // threads.
  const auto load_x = [&](int pass) {
    const Span part = columns_of(p, rank * p.passes + pass);
    const int column0 = part.first * kRecordColumns;
    const int count = part.count * kRecordColumns;
    const int valid = min(max(p.columns - column0, 0), count);
    const int length = (part.count + kPieces - 1) / kPieces * kRecordColumns;
    const int copied = p.x_aligned ? valid : 0;  // the rest by ordinary stores
    const T* const source = static_cast<const T*>(p.x) + column0;
    if (copied < count) {
#pragma unroll 1
      for (int token = warp; token < p.tokens; token += warps) {
#pragma unroll 1
        for (int i = copied + lane; i < count; i += 32) {
          store_shared16(x0 + token * pitch + i * 2,
                         i < valid ? source[token * p.x_stride + i] : T(0.f));
        }
      }
      __syncthreads();
    }
#pragma unroll 1
    for (int s = 0; s < kPieces; ++s) {
      const int end = min((s + 1) * length, copied);
#pragma unroll 1
      for (int token = warp; token < p.tokens; token += warps) {
        const T* const row = source + token * p.x_stride;
        const uint32_t to = x0 + token * pitch;
#pragma unroll 4
        for (int i = s * length + lane * 8; i < end; i += 256) {
          copy16(to + i * 2, row + i);
        }
      }
      arrive_with_copies(x_full + s * 8);
    }
  };
  // Where integers are made of x, each thread makes those of what it copies itself.
  typename PRODUCT::XPreparation preparation(x0, pitch, warp, warps, lane);
  const auto begin_x = [&](int pass) {
    if constexpr (PRODUCT::kPreparesX) {
      const Span part = columns_of(p, rank * p.passes + pass);
      const int column0 = part.first * kRecordColumns;
      preparation.begin({.x = static_cast<const T*>(p.x) + column0,
                         .stride = p.x_stride,
                         .tokens = p.tokens,
                         .inverse = p.token_inverse,
                         .records = part.count,
                         .valid = min(max(p.columns - column0, 0), part.count * kRecordColumns),
                         .aligned = p.x_aligned});
    } else {
      load_x(pass);
    }
  };
  const uint64_t policy = evict_first();
  const auto fetch_record = [&](int stage, uint32_t to) {  // by a whole warp, for the next record
    if (lane == fetch.used) {
      const uint32_t bytes = (fetch.current.end - fetch.current.start) * 16;
      barrier_expect(full + stage * 8, bytes);
      bulk_load(to, p.records + static_cast<uint64_t>(fetch.current.start) * 16, bytes,
                full + stage * 8, policy);
    }
    if (++fetch.used == fetch.current.loaded) {
      fetch.used = 0;
      fetch.current = fetch.ahead;
      fetch.ahead = load_table();
    }
  };
  const auto fetch_even = [&](int stage) { fetch_record(stage, ring0 + stage * p.stage_bytes); };
  // Where in the ring the records in flight begin, the oldest lowest, and where the newest ends.
  constexpr int kBeginBits = 10;
  static_assert(kMaxRingUnits < 1 << kBeginBits && kMaxStages * kBeginBits <= 64);
  struct {
    uint64_t begins = 0;
    int in_flight = 0;
    int stage = 0;  // whose barrier the next record gets
    uint32_t end = 0;
  } queue;
  const auto oldest = [&] {
    return static_cast<uint32_t>(queue.begins) & ((1u << kBeginBits) - 1);
  };
  const auto fetch_uneven = [&] {  // false if there is no room for the next record
    if constexpr (UNEVEN) {
      if (queue.in_flight == p.stages) {
        return false;
      }
      const uint32_t units = __shfl_sync(~0u, fetch.current.end - fetch.current.start, fetch.used);
      const uint32_t room = (units * 16 + kPastValues + kRingUnit - 1) / kRingUnit;
      uint32_t at = queue.end;
      if (queue.in_flight == 0) {
        at = 0;
      } else if (at > oldest()) {
        if (at + room > static_cast<uint32_t>(p.ring_units)) {
          at = 0;
          if (room > oldest()) {
            return false;
          }
        }
      } else if (at + room > oldest()) {
        return false;
      }
      queue.begins |= static_cast<uint64_t>(at) << (kBeginBits * queue.in_flight);
      ++queue.in_flight;
      queue.end = at + room;
      fetch_record(queue.stage, ring0 + at * kRingUnit);
      queue.stage = queue.stage + 1 == p.stages ? 0 : queue.stage + 1;
    }
    return true;
  };
  if (lane < min(p.prefetched_records, fetch.current.loaded)) {
    bulk_prefetch(p.records + static_cast<uint64_t>(fetch.current.start) * 16,
                  (fetch.current.end - fetch.current.start) * 16);
  }
  int requested = 0;
#pragma unroll 1
  for (int step = 0; step < 2; ++step) {
    const int limit = step == 0 ? p.records_before_wait : p.stages;
#pragma unroll 1
    for (; requested < limit && fetch.current.loaded != 0; ++requested) {
      if constexpr (!UNEVEN) {
        fetch_even(requested);
      } else if (!fetch_uneven()) {
        break;
      }
    }
    if (step == 0) {
      wait_on_dependencies();  // until here x may be written and y be read
      begin_x(0);
    }
  }
  preparation.finish();

  PRODUCT product(lane, x0, pitch, p.group);
  const int log_share = kLogTileUnits - p.log_split;
  const int share = 1 << log_share;        // units of a tile that a block gets
  const int entries = p.passes * p.tiles;  // tiles that a block sends
  const auto global_reduction_of = [&](int block) {
    return p.global_reduction +
           (static_cast<int64_t>(blockIdx.x) - rank + block) * entries * kTileUnits;
  };
  cluster_wait();

  int stage = 0;       // of the next record
  uint32_t phase = 0;  // of its barrier
  int sent = 0;
#pragma unroll 1
  for (int pass = 0; pass < p.passes; ++pass) {
    if (pass > 0) {
      if constexpr (!PRODUCT::kPreparesX) {
#pragma unroll 1
        for (int s = 0; s < kPieces; ++s) {  // also those that no record needed
          barrier_wait(x_full + s * 8, (pass - 1) & 1);
        }
      }
      __syncthreads();
      begin_x(pass);
      preparation.finish();
    }
    const int columns = columns_of(p, rank * p.passes + pass).count;
    const Span mine = share_of(p, blocks.count * columns, warp);
    const int piece = (columns + kPieces - 1) / kPieces;  // as in load_x()
    uint32_t missing = (1u << kPieces) - 1;               // pieces of x that were not waited for
    if constexpr (PRODUCT::kPreparesX) {
      __syncthreads();
      missing = 0;
    }
    const int mine_end = mine.first + mine.count;
    int item = middle_of<PRODUCT>(p, mine, columns);
    int left = mine.count;
#pragma unroll 1
    while (left > 0) {
      const int j = row_block_of(p, item, columns);
      int k = item - j * columns;
      product.clear();
      const int end = min(columns, mine_end - j * columns);
      left -= end - k;
      item = j * columns + end == mine_end ? mine.first : j * columns + end;
#pragma unroll 1
      for (; k < end; ++k) {
        if (missing != 0) {
          const int s = k >= 2 * piece ? 2 + (k >= 3 * piece) : k >= piece;
          if ((missing >> s & 1) != 0) {
            barrier_wait(x_full + s * 8, pass & 1);
            missing &= ~(1u << s);
          }
        }
        barrier_wait(full + stage * 8, phase);
        const uint32_t at = ring0 + (UNEVEN ? oldest() * kRingUnit : stage * p.stage_bytes);
        product.multiply(at, k);
        __syncwarp();
        if constexpr (UNEVEN) {
          queue.begins >>= kBeginBits;
          --queue.in_flight;
          while (fetch.current.loaded != 0 && fetch_uneven()) {
          }
        } else if (fetch.current.loaded != 0) {
          fetch_even(stage);
        }
        if (++stage == p.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
      product.finish();
      const int entry = ((rank * p.passes + pass) * p.tiles + j + warp) * share;
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const float4 a = product.fragment(f);
        const int unit = f * 32 + lane;
        const int to = unit >> log_share;
        const int at = entry + (unit & (share - 1));
        if (p.global_reduction != nullptr) {
          global_reduction_of(to)[at] = a;
        } else if (p.split > 1) {
          send(shared0 + p.reduction_at + at * 16, reduction_full, to, a);
        } else {
          reinterpret_cast<float4*>(shared + p.reduction_at)[at] = a;
        }
      }
      ++sent;
    }
  }
  if (p.split == 1) {
    __syncthreads();
  } else if (p.global_reduction != nullptr) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncwarp();
    if (lane < p.split) {
      barrier_expect_remote(reduction_full, lane, sent * share * 16);
    }
    barrier_wait_cluster(reduction_full, 0);
  }

  // The reduction. The tiles of a row block are added up in four sums, so that four loads are on
  // their way at a time: for even parts one of their first, third, ... tiles and one of the others,
  // and the same two for odd parts.
  constexpr int kSums = 4;
  const float4* const reduction = p.global_reduction != nullptr
                                      ? global_reduction_of(rank)
                                      : reinterpret_cast<float4*>(shared + p.reduction_at);
  const int parts = p.split * p.passes;
  const int units = blocks.count * share;
#pragma unroll 1
  for (int u = threadIdx.x; u < units; u += blockDim.x) {
    const int j = u >> log_share;
    const int in_tile = u & (share - 1);
    const uint32_t less = owners[2 * j];
    const uint32_t more = owners[2 * j + 1];
    const int row = (blocks.first + j) * kRecordRows;
    const int unit = rank * share + in_tile;
    const auto scales = PRODUCT::scales(p, row, unit >> 5, unit & 31);
    const int most = max((less >> 8) - (less & 255), (more >> 8) - (more & 255)) + 1;
    float4 sums[kSums];
#pragma unroll
    for (float4& sum : sums) {
      sum = float4{0.f, 0.f, 0.f, 0.f};
    }
#pragma unroll 1
    for (int q0 = 0; q0 < parts; q0 += 2) {
#pragma unroll 1
      for (int w0 = 0; w0 < most; w0 += 2) {
        float4 tiles[kSums];
        bool valid[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          const int q = q0 + i / 2;
          const uint32_t o = q < p.columns_more ? more : less;
          const uint32_t w = (o & 255) + w0 + i % 2;
          valid[i] = q < parts && w <= o >> 8;
          tiles[i] =
              load_tile(reduction + (valid[i] ? (q * p.tiles + j + w) * share + in_tile : 0));
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          if (valid[i]) {
            add(sums[i], tiles[i]);
          }
        }
      }
    }
    add(sums[0], sums[1]);
    add(sums[2], sums[3]);
    add(sums[0], sums[2]);
    PRODUCT::store(p, row, unit >> 5, unit & 31, sums[0], scales);
  }
#endif
}

}  // namespace sparsellm::tca_bme
