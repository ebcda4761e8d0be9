#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/record_unit.cuh"
#include "sparse/tca_bme/cuda/record_wgmma_product.cuh"

namespace sparsellm::tca_bme {

constexpr int kMaxStages = 32;  // of a ring
// A stage of a ring holds what a step takes: two units, of W and of x. Of spans with an odd number
// of units, the last step has one.
constexpr int kStepUnits = 2;
constexpr int kMaxConsumers = 4;
// Byte offsets of the barriers in shared memory: for each consumer warpgroup, one of each stage.
constexpr int kRingBarriers = kMaxConsumers * kMaxStages * 8;
constexpr int kRecordsFull = 0;
constexpr int kRecordsEmpty = kRingBarriers;
constexpr int kXFull = 2 * kRingBarriers;
constexpr int kXEmpty = 3 * kRingBarriers;
constexpr int kReductionFull = 4 * kRingBarriers;
constexpr int kReductionEmpty = kReductionFull + kMaxConsumers * 8;
// Of uneven matrices, where in the ring the record of each stage begins.
constexpr int kStageWords = kReductionEmpty + kMaxConsumers * 8;
constexpr int kTileBarrierBytes = 5 * 1024;
static_assert(kStageWords + kMaxConsumers * kMaxStages * 4 <= kTileBarrierBytes);

// y [tokens, rows] = x [tokens, columns] * W^T for many tokens, by warpgroups that decode records
// into the registers of their left operand; x is the right one, in shared memory.
//
// Thread blocks are warp-specialised: one producer warpgroup fetches what the consumer warpgroups
// read, records and x in units of 64 columns, into rings of stages in shared memory.
//
// A tile of tokens has `tile_clusters` clusters of `split` blocks, which share the row blocks of W.
// A cluster works on a group of up to `group_blocks` row blocks at a time, which is a round: as
// many consumer warpgroups of each block take a row block each, of the same record columns, and
// share what is loaded of x. The record columns, K, are cut into `parts`: for the blocks of the
// cluster (split-K), and in a block for `slices` sets of consumer warpgroups (sliced-K). In a
// round, warp w of a warpgroup has rows 16 w to 16 w + 15 of the row block. After it, the parts are
// reduced: each of them gets some of the fragments (16 rows x 8 tokens) of all in its reduction
// buffer in shared memory and adds them in the order of the columns.
//
// Records of an uneven matrix may have any size: they lie one after the other in a ring of bytes. A
// stage is then a barrier for one record, and a word that says where it is.
//
// Clusters get whole row blocks, or, if these do not divide well, equal shares of all pairs (group,
// record column), columns fastest: Stream-K (Osama et al., 2023). A cluster then begins and ends
// anywhere in a group; the partial sums of a group that several clusters share go to global memory,
// and record_wgmma_combine_kernel adds them in the order of the columns.
struct TileParameters {
  const uint8_t* records;
  const uint32_t* starts;
  const float* scales;    // of rows, if the values have any
  int group;              // columns that share a scale, if the values have any
  const float* x_scales;  // of integers of x, [tile of tokens, block of columns, token]
  int x_blocks;
  void* y;
  const void* bias;  // or null
  bool relu;
  int64_t y_stride;
  int rows, tokens;
  int record_columns, row_blocks, groups;
  int tile_clusters, split, group_blocks;
  float4* partials;  // with Stream-K: two for each cluster; else null
  int x_stages, record_stages;
  int record_bytes;       // that a record has in a stage, unless the matrix is uneven
  int ring_bytes;         // of the records of a consumer warpgroup, whatever their sizes
  int log_buffer_stride;  // of uneven matrices: one slice of this many has a reduction buffer
  int totals_at, reduction_at, x_at, rings_at;  // byte offsets in shared memory
  bool x_resident;         // there are stages for all steps: they are loaded once
  int stages_before_wait;  // of records, requested before x, which with PDL may not be there yet
};

// With the producer warpgroup, which is the last.
constexpr int tile_threads(int consumers) { return (consumers + 1) * 128; }
// Registers of the threads of consumers and of the producer: those that the block got when it
// started, redistributed.
constexpr int consumer_registers(int consumers) {
  return consumers == 4 ? 104 : consumers == 3 ? 152 : 224;
}
constexpr int producer_registers(int consumers) { return consumers == 4 ? 64 : 56; }

struct Round {
  int first_block, blocks;    // row blocks of the group
  int first_column, columns;  // of records
};

// The rounds of a cluster: how its row blocks are cut into groups.
struct Rounds {
  const TileParameters& p;
  int first, blocks;  // row blocks; with Stream-K, groups
  int first_column;   // where the first round begins: with Stream-K
  int end_column;     // where the last one ends
  int count;

  __device__ Rounds(const TileParameters& parameters, int cluster) : p(parameters) {
    const bool stream_k = p.partials != nullptr;
    const int64_t items = stream_k ? int64_t{p.groups} * p.record_columns : p.row_blocks;
    const int64_t begin = items * cluster / p.tile_clusters;
    const int64_t end = items * (cluster + 1) / p.tile_clusters;
    if (stream_k) {
      const int64_t last = (end - 1) / p.record_columns;
      first = static_cast<int>(begin / p.record_columns);
      first_column = static_cast<int>(begin - int64_t{first} * p.record_columns);
      end_column = static_cast<int>(end - last * p.record_columns);
      blocks = count = static_cast<int>(last) + 1 - first;
    } else {
      first = static_cast<int>(begin);
      first_column = 0;
      end_column = p.record_columns;
      blocks = static_cast<int>(end - begin);
      count = (blocks + p.group_blocks - 1) / p.group_blocks;
    }
  }
  __device__ Round at(int r) const {
    const int from = r == 0 ? first_column : 0;
    const int columns = (r + 1 == count ? end_column : p.record_columns) - from;
    if (p.partials != nullptr) {
      const int block = (first + r) * p.group_blocks;
      return {block, min(p.group_blocks, p.row_blocks - block), from, columns};
    }
    const int begin = blocks * r / count;
    return {first + begin, blocks * (r + 1) / count - begin, from, columns};
  }
};

// The record columns of a part in a round. The first one is a multiple of MULTIPLE records after
// that of the round.
template <int MULTIPLE>
struct ColumnSpan {
  int first, count;
  __device__ ColumnSpan(const Round& round, int part, int parts) {
    if constexpr (MULTIPLE == 1) {
      first = round.first_column + round.columns * part / parts;
      count = round.first_column + round.columns * (part + 1) / parts - first;
    } else {
      const int multiples = (round.columns + MULTIPLE - 1) / MULTIPLE;
      first = round.first_column + multiples * part / parts * MULTIPLE;
      count = min(round.first_column + multiples * (part + 1) / parts * MULTIPLE,
                  round.first_column + round.columns) -
              first;
    }
  }
};

// Of the partial sums of a cluster for the group that it begins in the middle of (0), or does not
// end (1), those of a warp, fragment after fragment.
__device__ inline float4* partials_of(const TileParameters& p, int fragments, int cluster,
                                      int which, int block_in_group, int warp) {
  return p.partials +
         ((static_cast<int64_t>(cluster) * 2 + which) * p.group_blocks + block_in_group) * 4 *
             fragments * 32 +
         warp * fragments * 32;
}

// A place in a ring: the barrier of its stage, where the stage's data are, and the phase of the
// ring, the parity of how often it was gone round.
struct RingPlace {
  uint32_t first, end, at;
  uint32_t first_data, data, stage_bytes;
  uint32_t parity = 0;
  __device__ RingPlace(uint32_t barriers, int stages, uint32_t data_at, uint32_t bytes)
      : first(barriers),
        end(barriers + stages * 8),
        at(barriers),
        first_data(data_at),
        data(data_at),
        stage_bytes(bytes) {}
  __device__ void advance() {
    at += 8;
    data += stage_bytes;
    if (at == end) {
      at = first;
      data = first_data;
      parity ^= 1;
    }
  }
  __device__ void restart() {
    at = first;
    data = first_data;
    parity = 0;
  }
};
// Keeps the compiler from computing a value again wherever it is used.
__device__ inline uint32_t kept(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

// One warp of the producer fetches for one consumer warpgroup; that of the first row block of a
// group also fetches x, for all consumers of its slice.
template <class PRODUCT, bool UNEVEN>
__device__ inline void fetch_for_consumer(const TileParameters& p, const CUtensorMap& x_map,
                                          uint32_t shared0, int consumer, int part, int parts,
                                          const Rounds& rounds, int first_x_row) {
  using Span = ColumnSpan<PRODUCT::kSpanRecords>;
  constexpr int kUnits = PRODUCT::kRecordUnits;
  constexpr int kRecords = kStepUnits / kUnits;  // of a step
  constexpr int kStageRecords = UNEVEN ? 1 : kRecords;
  constexpr uint32_t kXBytes = PRODUCT::kXRows * kUnitRowBytes;  // of a unit
  const int lane = threadIdx.x & 31;
  const int block_in_group = consumer % p.group_blocks;
  const int slice = consumer / p.group_blocks;
  const uint64_t policy = evict_first();

  // Each lane has the table entry of one of the next `loaded` records, and of one of those after
  // them, to hide the latency of the table.
  struct Entries {
    uint32_t start = 0, end = 0;
    int loaded = 0;
  };
  int round = 0, column = 0, used = 0;
  const auto load_table = [&] {
    Entries e;
    while (round < rounds.count && e.loaded == 0) {
      const Round r = rounds.at(round);
      const Span columns(r, part, parts);
      if (block_in_group < r.blocks) {
        e.loaded = min(columns.count - column, 32);
        if (lane < e.loaded) {
          const uint32_t* const entry =
              p.starts + static_cast<int64_t>(r.first_block + block_in_group) * p.record_columns +
              columns.first + column + lane;
          e.start = __ldg(entry);
          e.end = __ldg(entry + 1);
        }
        column += e.loaded;
      }
      if (block_in_group >= r.blocks || column == columns.count) {
        ++round;
        column = 0;
      }
    }
    return e;
  };
  Entries current = load_table();
  Entries ahead = load_table();
  const uint32_t stage_bytes = kStageRecords * p.record_bytes;
  const uint32_t records0 = shared0 + p.rings_at + consumer * p.ring_bytes;
  RingPlace record(shared0 + kRecordsFull + consumer * kMaxStages * 8, p.record_stages, records0,
                   stage_bytes);
  const auto wait_for_stage = [&] {
    barrier_wait(record.at + kRecordsEmpty - kRecordsFull, record.parity ^ 1);
  };
  // Of uneven records in flight or in use: the oldest, how many, where each begins, in the lane of
  // its stage, and where the newest ends.
  RingPlace oldest = record;
  int in_flight = 0;
  uint32_t begin_of_stage = 0, newest_end = 0;
  const auto stage_of = [](const RingPlace& place) { return (place.at - place.first) / 8; };
  // Where in the ring this many bytes are free; waits until some are, if it may.
  constexpr uint32_t kNoRoom = ~0u;
  const auto room_for = [&](uint32_t bytes, bool may_wait) {
    while (in_flight != 0) {
      const uint32_t used_from = __shfl_sync(~0u, begin_of_stage, stage_of(oldest));
      if (in_flight < p.record_stages) {
        const bool after = newest_end > used_from;
        if (newest_end + bytes <= (after ? static_cast<uint32_t>(p.ring_bytes) : used_from)) {
          return newest_end;
        }
        if (after && bytes <= used_from) {
          return 0u;
        }
      }
      if (!may_wait) {
        return kNoRoom;
      }
      barrier_wait(oldest.at + kRecordsEmpty - kRecordsFull, oldest.parity);
      oldest.advance();
      --in_flight;
    }
    return 0u;
  };
  // To the current stage. False if that would have to wait and may not.
  const auto fetch_records = [&](bool may_wait) {
    const int count = min(kStageRecords, current.loaded - used);
    const uint32_t begin = __shfl_sync(~0u, current.start, used);
    const uint32_t end = __shfl_sync(~0u, current.end, used + count - 1);
    const int i = lane - used;
    uint32_t data = record.data;
    if constexpr (UNEVEN) {
      constexpr uint32_t kAlignment = 128;  // at which bulk copies are the fastest
      const uint32_t bytes = ((end - begin) * 16 + 2 + kAlignment - 1) / kAlignment * kAlignment;
      const uint32_t at = room_for(bytes, may_wait);
      if (at == kNoRoom) {
        return false;
      }
      newest_end = at + bytes;
      ++in_flight;
      if (lane == static_cast<int>(stage_of(record))) {
        begin_of_stage = at;
      }
      data = records0 + at;
    } else {
      wait_for_stage();
    }
    if (i == 0) {
      if constexpr (UNEVEN) {
        const uint32_t word = kStageWords + (record.at - shared0 - kRecordsFull) / 2;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared0 + word), "r"(data) : "memory");
      }
      barrier_expect(record.at, (end - begin) * 16);
    }
    if (i >= 0 && i < count) {
      bulk_load(data + i * p.record_bytes, p.records + static_cast<uint64_t>(current.start) * 16,
                (current.end - current.start) * 16, record.at, policy);
    }
    record.advance();
    used += count;
    if (used == current.loaded) {
      used = 0;
      current = ahead;
      ahead = load_table();
    }
    return true;
  };

  constexpr uint32_t kXStageBytes = kStepUnits * kXBytes;
  RingPlace x(shared0 + kXFull + slice * kMaxStages * 8, p.x_stages,
              shared0 + p.x_at + slice * p.x_stages * kXStageBytes, kXStageBytes);
  const int x_rounds = block_in_group != 0 ? 0 : p.x_resident ? 1 : rounds.count;
  int x_round = -1, x_unit = 0, x_end = 0;
  const auto next_x = [&] {  // after the last of a round, the first of the next that has one
    while (x_unit == x_end && x_round < x_rounds) {
      if (++x_round < x_rounds) {
        const Span columns(rounds.at(x_round), part, parts);
        x_unit = columns.first * kUnits;
        x_end = x_unit + columns.count * kUnits;
      }
    }
  };
  const auto fetch_x = [&] {
    const int count = min(kStepUnits, x_end - x_unit);
    if (lane == 0) {
      barrier_expect(x.at, count * kXBytes);
    }
    if (lane < count) {
      bulk_load_box(x.data + lane * kXBytes, &x_map, (x_unit + lane) * kUnitColumns, first_x_row,
                    x.at);
    }
    x.advance();
    x_unit += count;
    next_x();
    return count;
  };
  next_x();

  int filled = 0;  // stages of records
  int units = 0;   // of x
#pragma unroll 1
  for (; filled < p.stages_before_wait && current.loaded != 0 && fetch_records(false); ++filled) {
  }
  wait_on_dependencies();
  // Both rings fill, where no wait takes long, before either goes on as its stages are used up.
  // That of uneven records may be full with any number of them, which need their x to be used up.
#pragma unroll 1
  for (int s = 0; current.loaded != 0 || x_round < x_rounds; ++s) {
    if (x_round < x_rounds) {
      barrier_wait(x.at + kXEmpty - kXFull, x.parity ^ 1);
      units += fetch_x();
    }
    if constexpr (UNEVEN) {
      while (current.loaded != 0 && (filled * kUnits < units || x_round == x_rounds)) {
        fetch_records(true);
        ++filled;
      }
    } else if (current.loaded != 0 && (filled < p.record_stages || s + 1 >= p.x_stages)) {
      fetch_records(true);
      ++filled;
    }
  }
}

// PRODUCT: how a record is multiplied (record_wgmma_product.cuh). UNEVEN: records may have any
// size, if a ring has room for the largest.
template <class PRODUCT, bool UNEVEN>
__global__ void __launch_bounds__(tile_threads(PRODUCT::kConsumers), 1)
    record_wgmma_kernel(const __grid_constant__ TileParameters p,
                        const __grid_constant__ CUtensorMap x_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t shared[];
  using Span = ColumnSpan<PRODUCT::kSpanRecords>;
  constexpr int kConsumers = PRODUCT::kConsumers;
  constexpr int kFragments = PRODUCT::kTokens / 8;               // of a warp
  constexpr uint32_t kXBytes = PRODUCT::kXRows * kUnitRowBytes;  // of a unit
  constexpr int kRecords = kStepUnits / PRODUCT::kRecordUnits;   // of a step
  const int lane = threadIdx.x & 31;
  const int warp = uniform_warp();
  const int warpgroup = warp >> 2;
  const int rank = p.split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int cluster = p.split > 1 ? static_cast<int>(cluster_id()) : blockIdx.x;
  const Rounds rounds(p, cluster % p.tile_clusters);
  const int token_tile = cluster / p.tile_clusters;
  const int first_token = token_tile * PRODUCT::kTokens;
  const int slices = kConsumers / p.group_blocks;
  const int parts = p.split * slices;
  const uint32_t shared0 = kept(shared_address(shared));

  // By one lane of each warp: the lanes of one warp would be serialised.
  if (lane == 0) {
    for (int i = warp; i < kConsumers * p.record_stages; i += tile_threads(kConsumers) / 32) {
      const int at = (i / p.record_stages * kMaxStages + i % p.record_stages) * 8;
      barrier_init(shared0 + kRecordsFull + at, 1);
      barrier_init(shared0 + kRecordsEmpty + at, 4);
    }
    for (int i = warp; i < slices * p.x_stages; i += tile_threads(kConsumers) / 32) {
      const int at = (i / p.x_stages * kMaxStages + i % p.x_stages) * 8;
      barrier_init(shared0 + kXFull + at, 1);
      barrier_init(shared0 + kXEmpty + at, 4 * p.group_blocks);
    }
    if (warp < kConsumers) {
      barrier_init(shared0 + kReductionFull + warp * 8, 4 * parts);
      barrier_init(shared0 + kReductionEmpty + warp * 8, 4 * parts);
    }
    barriers_ready();
  }
  __syncthreads();
  cluster_started();
  launch_dependents();

  if (warpgroup == kConsumers) {
    decrease_registers<producer_registers(kConsumers)>();
    const int consumer = warp & 3;
    if (consumer < kConsumers) {
      fetch_for_consumer<PRODUCT, UNEVEN>(p, x_map, shared0, consumer,
                                          rank * slices + consumer / p.group_blocks, parts, rounds,
                                          token_tile * PRODUCT::kXRows);
    }
    cluster_wait();
  } else {
    increase_registers<consumer_registers(kConsumers)>();
    const int block_in_group = warpgroup % p.group_blocks;
    const int slice = warpgroup / p.group_blocks;
    const int part = rank * slices + slice;
    const typename PRODUCT::Decoder decoder(lane, warp & 3, p.group);
    const uint32_t record_bytes = kept(p.record_bytes);
    // For even matrices not p.ring_bytes: the compiler would then keep x's addresses in other
    // registers, and the main loop would take 5 % longer.
    const uint32_t ring_bytes = UNEVEN ? p.ring_bytes : p.record_stages * kRecords * record_bytes;
    RingPlace record(kept(shared0 + kRecordsFull + warpgroup * kMaxStages * 8), p.record_stages,
                     kept(shared0 + p.rings_at + warpgroup * ring_bytes), kRecords * record_bytes);
    constexpr uint32_t kXStage = kStepUnits * kXBytes;
    RingPlace x(kept(shared0 + kXFull + slice * kMaxStages * 8), p.x_stages,
                kept(swizzled_operand(shared0 + p.x_at + slice * p.x_stages * kXStage)),
                kXStage / 16);
    const bool never = p.split < 0;
    typename PRODUCT::Sums sums(shared0 + p.totals_at + threadIdx.x * 16);
    int reductions = 0;  // that the warpgroup took part in
    cluster_wait();
    wait_on_dependencies();  // until here y may be read

#pragma unroll 1
    for (int r = 0; r < rounds.count; ++r) {
      const int records = Span(rounds.at(r), part, parts).count;
      const int steps = records / kRecords;  // whole ones
      const bool odd = records % kRecords != 0;
      [[maybe_unused]] const int first_block_of_x =
          Span(rounds.at(r), part, parts).first / PRODUCT::kSpanRecords;
      if (p.x_resident) {
        x.restart();
      }
      const auto release_x = [&](uint32_t barrier) {
        if (!p.x_resident && lane == 0) {
          barrier_arrive(barrier + kXEmpty - kXFull);
        }
      };
      if (block_in_group >= rounds.at(r).blocks) {
#pragma unroll 1
        for (int s = 0; s < steps + odd && !p.x_resident; ++s) {
          barrier_wait(x.at, x.parity);
          release_x(x.at);
          x.advance();
        }
        continue;
      }
      // Half a unit is decoded while the half before is multiplied. The places in a unit are looked
      // up with the last half of the one before; how that and its products interleave is left to
      // the compiler, which is faster than either order.
      constexpr int kHalfChunks = kUnitChunks / 2;
      uint32_t a[2][kHalfChunks][4] = {};
      sums.clear();
      typename PRODUCT::Places places;
      uint32_t data = 0;  // of a record, if uneven
      const auto locate = [&]<int UNIT>() {
        if constexpr (PRODUCT::kRecordUnits == kStepUnits) {
          PRODUCT::template locate<UNIT>(places, UNEVEN ? data : record.data, decoder);
        } else {
          PRODUCT::template locate<0>(places, UNEVEN ? data : record.data + UNIT * record_bytes,
                                      decoder);
        }
      };
      const auto wait_for_records = [&] {
        barrier_wait(record.at, record.parity);
        if constexpr (UNEVEN) {
          asm volatile("ld.shared.u32 %0, [%1];"
                       : "=r"(data)
                       : "r"(shared0 + kStageWords + (record.at - shared0 - kRecordsFull) / 2)
                       : "memory");
        }
      };
      const auto multiply_half = [&]<int H>(uint32_t b, auto ended, auto loaded) {
        wgmma_wait<1>();
        ended();
#pragma unroll
        for (int c = 0; c < kHalfChunks; ++c) {
          keep_until_here(a[H][c], never, decoder.offsets_at);
          PRODUCT::load(a[H][c], places, kHalfChunks * H + c, decoder);
        }
        loaded();
#pragma unroll
        for (int i = 0; i < kHalfChunks * 4; ++i) {  // not to be computed between the products
          asm volatile("" : "+r"(a[H][i / 4][i % 4]));
        }
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < kHalfChunks; ++c) {
          sums.multiply(a[H][c], b, kHalfChunks * H + c);
        }
        wgmma_commit();
      };
      // Of steps up to this one, since the last call; `sums` are added up.
      const auto end_products = [&](int step) {
        wgmma_wait<0>();
#pragma unroll
        for (int c = 0; c < 2 * kHalfChunks; ++c) {
          keep_until_here(a[c / kHalfChunks][c % kHalfChunks], never, decoder.offsets_at);
        }
        if constexpr (PRODUCT::kBlockSteps > 0) {
          sums.finish(p, token_tile, first_block_of_x + step / PRODUCT::kBlockSteps, lane);
        } else {
          sums.finish();
        }
      };
      const auto nothing = [] {};
      const auto wait_for_x = [&] { barrier_wait(x.at, x.parity); };
      uint32_t x_before = 0;
      const auto next_stage = [&] {
        __syncwarp();
        if (lane == 0) {
          barrier_arrive(record.at + kRecordsEmpty - kRecordsFull);
        }
        record.advance();
      };
      wait_for_records();
      locate.template operator()<0>();
#pragma unroll 1
      for (int s = 0; s < steps; ++s) {
        const auto products_ended = [&] {
          if (s > 0) {
            release_x(x_before);
          }
        };
        multiply_half.template operator()<0>(x.data, nothing, wait_for_x);
        multiply_half.template operator()<1>(x.data, products_ended, [&] {
          if constexpr (UNEVEN && kRecords > 1) {
            next_stage();
            wait_for_records();
          }
          locate.template operator()<1>();
        });
        multiply_half.template operator()<0>(x.data + kXBytes / 16, nothing, nothing);
        multiply_half.template operator()<1>(x.data + kXBytes / 16, nothing, [&] {
          next_stage();
          if (odd || s + 1 < steps) {
            wait_for_records();
            locate.template operator()<0>();
          }
        });
        x_before = x.at;
        x.advance();
        if constexpr (PRODUCT::kBlockSteps > 0) {
          if ((s + 1) % PRODUCT::kBlockSteps == 0 && (odd || s + 1 < steps)) {
            end_products(s);
          }
        }
      }
      if (kRecords > 1 && odd) {
        multiply_half.template operator()<0>(x.data, nothing, wait_for_x);
        multiply_half.template operator()<1>(
            x.data,
            [&] {
              if (steps > 0) {
                release_x(x_before);
              }
            },
            next_stage);
        x_before = x.at;
        x.advance();
      }
      end_products(steps + odd - 1);
      release_x(x_before);

      const Round round = rounds.at(static_cast<int>(kept(r)));  // not kept in the loop
      const int first_row = (round.first_block + block_in_group) * 64 + (warp & 3) * 16;
      const auto fragment = [&](int f) { return sums.fragment(f); };
      if (round.columns != p.record_columns) {  // then there is one part
        float4* const partials =
            partials_of(p, kFragments, cluster, round.first_column == 0, block_in_group, warp & 3) +
            lane;
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          partials[f * 32] = fragment(f);
        }
        continue;
      }
      if (parts == 1) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          PRODUCT::store(p, first_row, first_token + f * 8, lane, fragment(f));
        }
        continue;
      }
      // Fragment f goes to part f * parts / kFragments; that one's lie side by side there, those of
      // a part after those of the part before.
      const auto owner = [&](int f) { return f * parts / kFragments; };
      const auto first_of = [&](int o) { return (o * kFragments + parts - 1) / parts; };
      const int max_owned = (kFragments + parts - 1) / parts;
      const uint32_t reduction = p.reduction_at + (warp & 3) * 512 + lane * 16;
      const int reduction_bytes = parts * max_owned * 2048;
      const auto consumer_of = [&](int o) { return o % slices * p.group_blocks + block_in_group; };
      // Of even matrices each consumer warpgroup has a reduction buffer; looking for it would cost
      // 2 % of the time.
      const auto buffer_of = [&](int o) {
        return UNEVEN ? (o % slices >> p.log_buffer_stride) * p.group_blocks + block_in_group
                      : consumer_of(o);
      };
      if (reductions > 0) {
        barrier_wait_cluster(shared0 + kReductionEmpty + warpgroup * 8, (reductions - 1) & 1);
      }
      const bool alone = p.split == 1;  // then all parts are in this block
      const auto reduction_full = [&](int o) {
        return shared0 + kReductionFull + consumer_of(o) * 8;
      };
      if (!alone && lane < parts) {
        const int count = first_of(lane + 1) - first_of(lane);
        barrier_expect_remote(reduction_full(lane), lane / slices, count * 512);
      }
      __syncwarp();
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const int to = owner(f);
        const int at = part * max_owned + f - first_of(to);
        const uint32_t address = reduction + buffer_of(to) * reduction_bytes + at * 2048;
        if (alone) {
          *reinterpret_cast<float4*>(shared + address) = fragment(f);
        } else {
          send(shared0 + address, reduction_full(to), to / slices, fragment(f));
        }
      }
      __syncwarp();
      if (alone && lane < parts) {
        barrier_arrive(reduction_full(lane));
      }
      barrier_wait_cluster(shared0 + kReductionFull + warpgroup * 8, reductions & 1);
      const int own = first_of(part + 1) - first_of(part);
#pragma unroll 1
      for (int i = 0; i < own; ++i) {
        float4 sum{0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
        for (int q = 0; q < parts; ++q) {
          add(sum,
              load_tile(reinterpret_cast<const float4*>(
                  shared + reduction + (UNEVEN ? buffer_of(part) : warpgroup) * reduction_bytes +
                  (q * max_owned + i) * 2048)));
        }
        PRODUCT::store(p, first_row, first_token + (first_of(part) + i) * 8, lane, sum);
      }
      __syncwarp();
      ++reductions;
      if (lane < parts) {
        barrier_arrive_remote(shared0 + kReductionEmpty + consumer_of(lane) * 8, lane / slices);
      }
    }
  }
  if (parts > 1) {  // a block stays until what others send to it, or it to them, has arrived
    cluster_arrive();
    cluster_wait();
  }
#endif
}

constexpr int kCombineFragments = 4;  // of a block

// The fix-up of Stream-K: adds the partial sums of clusters, of one tile of tokens. Thread blocks
// (boundary of shares, row block of a group and some of the fragments), a warp for each tile of 16
// rows; of the boundaries in a group, the first has the work.
template <class T, int N>
__global__ void __launch_bounds__(128)
    record_wgmma_combine_kernel(const __grid_constant__ TileParameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kFragments = N / 8;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int block_in_group = blockIdx.y % p.group_blocks;
  const int first_fragment = blockIdx.y / p.group_blocks * kCombineFragments;
  launch_dependents();
  wait_on_dependencies();  // the next kernel waits for this one only, so every block waits
  const auto boundary = [&](int share) {
    return int64_t{p.groups} * p.record_columns * share / p.tile_clusters;
  };
  const int share = blockIdx.x + 1;  // begins here
  const int64_t group = boundary(share) / p.record_columns;
  const int64_t begin = group * p.record_columns;
  const int block = static_cast<int>(group) * p.group_blocks + block_in_group;
  if (boundary(share) == begin || boundary(share - 1) > begin || block >= p.row_blocks) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kCombineFragments; ++i) {
    const int f = first_fragment + i;
    float4 sum{0.f, 0.f, 0.f, 0.f};
    for (int s = share - 1; s < p.tile_clusters && boundary(s) < begin + p.record_columns; ++s) {
      add(sum, partials_of(p, kFragments, s, s == share - 1, block_in_group, warp)[f * 32 + lane]);
    }
    store_fragment<T>(p, block * 64 + warp * 16, f * 8, lane, sum);
  }
#endif
}

}  // namespace sparsellm::tca_bme
