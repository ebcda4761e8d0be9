#pragma once

#include <cstdint>

#include "sparse/dense_source.cuh"
#include "sparse/tiled_csl/format/record_plan.h"

namespace sparsellm::tiled_csl {

// How a block of 8 warps makes the record of a tile by its plan: the nonzeros are put into lists in
// shared memory, and from there to where RecordEncoder (host/record_encoder.h) puts them.
//
// Everywhere lane b of a warp has bank b.

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kEmitWarps = 8;
constexpr int kWarpRows = kTileRows / kEmitWarps;              // of a warp
static_assert(kWarpRows % kChunk == 0 && kWarpRows == 2 * 8);  // 8 of a kind: the bits of a byte

struct TileCorner {  // the first element of a tile
  int64_t row;
  int64_t column;
};
__device__ inline TileCorner corner_of(const TileGrid& grid, int64_t tile) {
  return {.row = tile / grid.columns * kTileRows, .column = tile % grid.columns * kTileColumns};
}

// The pair of a row of a tile that lies in a bank.
__device__ inline uint32_t load_pair(const DenseSource& w, const TileCorner& corner, int row,
                                     int bank) {
  const auto location = static_cast<uint32_t>(row % kChunk * kTileColumns + 2 * bank);
  return load_two(w, corner.row + row, corner.column + column_at(position_of(location)));
}

// The nonzeros of a tile: those of a bank one after the other, in the order of their places. Banks
// are 8 elements further apart than they need be, so that threads which read those of neighbours
// read different banks of shared memory.
struct BankLists {
  alignas(16) uint16_t values[kBanks][kBankElements + kSlots];
  alignas(8) uint8_t locations[kBanks][kBankElements + kSlots];
  alignas(4) uint8_t used[kBanks][kBankElements / 8 + 4];  // a bit for each location byte
  uint16_t counts[kEmitWarps][kBanks];                     // of the rows of each warp
};

// Warp w has 16 rows from 16 w on. Returns how many nonzeros are in the bank of a lane. The lists
// are there after the next __syncthreads().
__device__ inline int gather(const DenseSource& w, const TileCorner& corner, BankLists& lists) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  uint32_t pairs[kWarpRows];
  uint32_t used = 0;  // byte e + 2 p: the elements e of rows with row % 2 = p, a bit for each
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    pairs[i] = load_pair(w, corner, warp * kWarpRows + i, lane);
    const uint32_t bits = nonzero_bits(pairs[i]);
    used |= ((bits & 1) | bits >> 16 << 8) << (i % 2 * 16 + i / 2);
  }
  lists.counts[warp][lane] = static_cast<uint16_t>(__popc(used));
#pragma unroll
  for (int kind = 0; kind < 4; ++kind) {
    lists.used[lane][kind * kEmitWarps + warp] = static_cast<uint8_t>(used >> 8 * kind);
  }
  __syncthreads();
  int count = 0;
  int next = 0;
#pragma unroll
  for (int i = 0; i < kEmitWarps; ++i) {
    next += i < warp ? lists.counts[i][lane] : 0;
    count += lists.counts[i][lane];
  }
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if ((used >> (i % 2 * 16 + e * 8 + i / 2) & 1) != 0) {
        lists.values[lane][next] = static_cast<uint16_t>(pairs[i] >> 16 * e);
        lists.locations[lane][next] =
            static_cast<uint8_t>(warp * kWarpRows / 2 + i / 2 + 64 * e + 128 * (i % 2));
        ++next;
      }
    }
  }
  return count;
}

// What a lane stores in a record, and what becomes of the nonzeros of its bank: ranks count these.
struct LanePlan {
  int places;        // of the lane
  int count;         // nonzeros of the bank
  int own;           // of them, in the lane
  int placed;        // of them, in any lane; words are the others
  int donor;         // the bank of values
  int hosted;        // that many, in the last slots of group 0,
  int first_hosted;  // from this rank on
  uint8_t empty;     // the location of zeros in other slots
};

// The lowest location byte without a nonzero, if there is one.
__device__ inline uint8_t free_location(const uint8_t* used) {
  for (int i = 0; i < kBankElements / 32; ++i) {
    const uint32_t free = ~reinterpret_cast<const uint32_t*>(used)[i];
    if (free != 0) {
      return static_cast<uint8_t>(i * 32 + __ffs(static_cast<int>(free)) - 1);
    }
  }
  return 0;
}

// Whole warps call it.
__device__ inline LanePlan lane_plan(const RecordPlan& plan, int count, const BankLists& lists) {
  const int lane = threadIdx.x % kWarp;
  LanePlan mine{.places = plan.groups * kSlots,
                .count = count,
                .donor = plan.donor[lane],
                .hosted = plan.hosted[lane]};
  mine.own = min(count, mine.places);
  mine.empty = mine.own < mine.places ? free_location(lists.used[lane]) : uint8_t{0};
  // A bank and the lanes that host its values: it has the same number there, and hosts none itself.
  const unsigned alike = __match_any_sync(kAllLanes, mine.donor);
  const unsigned before = alike & ((1u << lane) - 1);
  mine.placed = mine.own;
  mine.first_hosted = mine.places;
#pragma unroll
  for (int bit = 0; bit < 4; ++bit) {
    const unsigned lanes = __ballot_sync(kAllLanes, (mine.hosted >> bit & 1) != 0);
    mine.placed += __popc(lanes & alike) << bit;
    mine.first_hosted += __popc(lanes & before) << bit;
  }
  return mine;
}

// The lane's 8 slots of a group of the record.
__device__ inline void write_slots(const LanePlan& mine, const BankLists& lists, int group,
                                   uint4* value_slots, uint2* location_slots) {
  const int lane = threadIdx.x % kWarp;
  const int first = group == 0 ? mine.places - kSlots : (group - 1) * kSlots;  // the rank of slot 0
  if (first + kSlots <= mine.own) {
    *value_slots = *reinterpret_cast<const uint4*>(lists.values[lane] + first);
    *location_slots = *reinterpret_cast<const uint2*>(lists.locations[lane] + first);
    return;
  }
  uint32_t values[kSlots / 2] = {};
  uint32_t locations[kSlots / 4] = {};
  const int first_host_slot = group == 0 ? kSlots - mine.hosted : kSlots;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const bool is_hosted = slot >= first_host_slot;
    const int bank = is_hosted ? mine.donor : lane;
    const int rank = is_hosted ? mine.first_hosted + slot - first_host_slot : first + slot;
    const bool is_empty = !is_hosted && rank >= mine.own;
    const uint32_t value = is_empty ? 0 : lists.values[bank][rank];
    const uint32_t location = is_empty ? mine.empty : lists.locations[bank][rank];
    values[slot / 2] |= value << 16 * (slot % 2);
    locations[slot / 4] |= location << 8 * (slot % 4);
  }
  *value_slots = make_uint4(values[0], values[1], values[2], values[3]);
  *location_slots = make_uint2(locations[0], locations[1]);
}

// Of all words of the record, which go round the banks, those from `begin` on; a warp has every
// eighth round.
__device__ inline void write_words(const LanePlan& mine, const BankLists& lists, int begin,
                                   int count, uint32_t* words) {
  const int lane = threadIdx.x % kWarp;
  const int most = __reduce_max_sync(kAllLanes, mine.count);
  for (int rank = mine.places + static_cast<int>(threadIdx.x) / kWarp; rank < most;
       rank += kEmitWarps) {
    const int before = __reduce_add_sync(kAllLanes, max(min(rank, mine.count) - mine.placed, 0));
    const bool has_word = rank >= mine.placed && rank < mine.count;
    const unsigned lanes = __ballot_sync(kAllLanes, has_word);
    const int word = before + __popc(lanes & ((1u << lane) - 1)) - begin;
    if (has_word && word >= 0 && word < count) {
      const uint32_t place = location_in(lane, lists.locations[lane][rank]) * 2;
      words[word] = lists.values[lane][rank] | place << 16;
    }
  }
}

__device__ inline void write_zeros(uint8_t* from, const uint8_t* to) {  // of whole words
  for (uint32_t* word = reinterpret_cast<uint32_t*>(from) + threadIdx.x;
       word < reinterpret_cast<const uint32_t*>(to); word += kEmitWarps * kWarp) {
    *word = 0;
  }
}

}  // namespace sparsellm::tiled_csl
