#pragma once

#include <cstdint>
#include <type_traits>

#include "sparse/general_sparse/cuda/slice_matrix.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/format/layout.h"

// The kernel of expand_cuda().
namespace sparsellm::general_sparse {

inline constexpr int kExpandWarp = 32;
inline constexpr int kMostExpandWarps = 16;

struct ExpandParameters {
  const uint32_t* starts;
  const uint16_t* row_order;  // null: in order
  const void* positions;
  const uint16_t* values;
  const uint16_t* border_positions;  // as SliceMatrix has them
  uint16_t* dense;
  int64_t first_row;  // of dense
  int64_t end_row;
  int64_t columns;
  int64_t groups;
  int64_t panel_columns;
  int64_t first_window;
  int panels;
  int window_groups;
  int last_panel_words;  // of bits, of a group
  int shared_rows;
  int interleave;
  int vector_shift;
  int block_groups;  // of a slice, each for some lanes of every warp of a block
  int group_lanes;   // their number, a multiple of the vector
  int window_blocks;
  int tile_columns;  // of a row in shared memory: a multiple of 8
  bool in_vectors;   // rows of dense are aligned to 16 bytes
};

// The entries of a group that the lanes of a warp for it have: each has every lanes-th one. All of
// them call these functions.
struct GroupLanes {
  int64_t number;  // of the first entry, as EntryNumbers counts them (format/parts.h)
  int64_t step;    // from one to the next
  int count;       // of entries of the part
  int lanes;
  int in_group;  // the number of this lane

  // x of this lane and of those before it, together.
  __device__ int sum_until(int x) const {
    for (int distance = 1; distance < lanes; distance *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, x, static_cast<unsigned>(distance), lanes);
      x += in_group >= distance ? before : 0;
    }
    return x;
  }
  // x of the last lane.
  __device__ int of_last(int x) const { return __shfl_sync(0xffffffffu, x, lanes - 1, lanes); }
};

// Some entries of a lane; fillers may be among them.
template <int kCount>
struct Entries {
  int positions[kCount];
  bool are_there[kCount];
};
// Many loads that are under way at once hide how long each takes.
inline constexpr int kExpandBatch = 8;

// f(entries, number of the first) for all of the part, from one to the next `group.step` apart.
// Positions are those of codes, or, of differences, their sums after the position `before`.
template <bool kDifferences, class Code, class F>
__device__ void for_each_batch(const GroupLanes& group, const Code* codes, int before, F&& f) {
  codes += group.number;
  for (int first = 0; first < group.count; first += kExpandBatch * group.lanes) {
    Entries<kExpandBatch> entries;
#pragma unroll
    for (int i = 0; i < kExpandBatch; ++i) {
      entries.are_there[i] = first + i * group.lanes + group.in_group < group.count;
      entries.positions[i] =
          entries.are_there[i] ? static_cast<int>(__ldg(codes + i * group.step)) : 0;
    }
    codes += kExpandBatch * group.step;
    if constexpr (kDifferences) {
#pragma unroll
      for (int& position : entries.positions) {
        position = group.sum_until(position);
      }
#pragma unroll
      for (int& position : entries.positions) {
        const int sum = group.of_last(position);
        position += before;
        before += sum;
      }
    }
    f(entries, group.number + first / group.lanes * group.step);
  }
}

// f(entry, its number) for every bit of the words of the group; number_of(entry) is what
// EntryNumbers says.
template <class NumberOf, class F>
__device__ void for_each_bit(const GroupLanes& group, const uint32_t* first_word, int words,
                             int interleave, NumberOf&& number_of, F&& f) {
  int entries = 0;
  for (int first = 0; first < words; first += group.lanes) {
    const int w = first + group.in_group;
    uint32_t word = w < words ? first_word[int64_t{w} * interleave] : 0;
    const int until = entries + group.sum_until(__popc(word));
    for (int entry = until - __popc(word); word != 0; word &= word - 1, ++entry) {
      const int bit = __ffs(static_cast<int>(word)) - 1;
      f(Entries<1>{{static_cast<int>(w * ChunkGrid::kWordBits) + bit}, {true}}, number_of(entry));
    }
    entries = group.of_last(until);
  }
}

// A block has some groups of a slice, and its warps parts of their entries. Adjacent lanes have
// adjacent entries of a group. With a tile, the rows are put together in shared memory; without one
// zeros are in `dense` already. Fillers share the position of a nonzero.
template <PositionCode kCode, bool kTile>
__global__ void __launch_bounds__(kMostExpandWarps* kExpandWarp)
    expand_kernel(const ExpandParameters p) {
  extern __shared__ uint4 tile_vectors[];
  const uint32_t chunk = blockIdx.x / p.window_blocks;
  const auto panel = static_cast<int>(chunk % p.panels);
  const int64_t window = p.first_window + chunk / p.panels;
  const int64_t first_group = window * p.window_groups;
  const auto groups = static_cast<int>(min(int64_t{p.window_groups}, p.groups - first_group));
  const auto first_place = static_cast<int>(blockIdx.x % p.window_blocks) * p.block_groups;
  if (first_place >= groups) {
    return;
  }
  const int slices = (groups + p.interleave - 1) / p.interleave;
  const int slice = first_place / p.interleave;
  const int64_t slices_before = window * (p.window_groups / p.interleave);
  const int64_t stored = slices_before * p.panels + int64_t{panel} * slices + slice;
  const int64_t first_column = int64_t{panel} * p.panel_columns;
  // The first row of the group at a place.
  const auto row_at = [&](int place) {
    const int in_window =
        p.row_order == nullptr
            ? place
            : p.row_order[first_group * p.panels + int64_t{panel} * groups + place];
    return (first_group + in_window) * p.shared_rows;
  };

  auto* const tile = reinterpret_cast<uint16_t*>(tile_vectors);
  const int tile_rows = p.block_groups * p.shared_rows;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  constexpr int kVector = sizeof(uint4) / sizeof(uint16_t);
  if constexpr (kTile) {
    for (int i = thread; i < tile_rows * p.tile_columns / kVector; i += threads) {
      tile_vectors[i] = {};
    }
    __syncthreads();
  }

  const int lane = thread % kExpandWarp;
  const auto part = static_cast<uint32_t>(thread / kExpandWarp);
  const auto border_step = static_cast<uint32_t>(kMostParts / (threads / kExpandWarp));
  const int64_t begin = p.starts[stored];
  const uint32_t units = p.starts[stored + 1] - static_cast<uint32_t>(begin);
  const uint32_t begin_unit = part_border(units, part * border_step);
  const uint32_t end_unit = part_border(units, (part + 1) * border_step);
  const int in_block = lane / p.group_lanes;
  const int place = first_place + in_block;
  const bool is_group = place < groups;  // a slice may have fewer than lanes
  const int slice_lane = place % p.interleave;
  const auto number_of = [&](int64_t entry) {
    const int64_t unit = begin + (entry >> p.vector_shift);
    const int64_t in_unit = entry & ((int64_t{1} << p.vector_shift) - 1);
    return ((unit * p.interleave + slice_lane) << p.vector_shift) + in_unit;
  };
  const int in_group = lane % p.group_lanes;
  const GroupLanes lanes{.number = number_of((int64_t{begin_unit} << p.vector_shift) + in_group),
                         .step = int64_t{p.group_lanes} * p.interleave,
                         .count = static_cast<int>((end_unit - begin_unit) << p.vector_shift),
                         .lanes = p.group_lanes,
                         .in_group = in_group};
  const int64_t first_row = kTile || !is_group ? 0 : row_at(place);
  const auto write = [&]<int kCount>(const Entries<kCount>& entries, int64_t number) {
    const uint16_t* from = p.values + number * p.shared_rows;
    for (int r = 0; r < p.shared_rows; ++r, ++from) {
      uint16_t values[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = is_group && entries.are_there[i] ? __ldg(from + i * lanes.step * p.shared_rows)
                                                     : uint16_t{0};
      }
      uint16_t* to = nullptr;
      if constexpr (kTile) {
        to = tile + (in_block * p.shared_rows + r) * p.tile_columns;
      } else {
        const int64_t row = first_row + r;
        if (row < p.first_row || row >= p.end_row) {
          continue;
        }
        to = p.dense + (row - p.first_row) * p.columns + first_column;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (values[i] != 0) {
          to[entries.positions[i]] = values[i];
        }
      }
    }
  };
  if constexpr (kCode == PositionCode::bits) {
    const int64_t full_words = p.panel_columns / ChunkGrid::kWordBits;
    const int words = panel + 1 < p.panels ? static_cast<int>(full_words) : p.last_panel_words;
    const int64_t words_before =
        slices_before * ((p.panels - 1) * full_words + p.last_panel_words) +
        panel * full_words * slices + int64_t{slice} * words;
    for_each_bit(
        lanes, static_cast<const uint32_t*>(p.positions) + words_before * p.interleave + slice_lane,
        words, p.interleave, number_of, write);
  } else if constexpr (has_differences(kCode)) {
    using Code = std::conditional_t<kCode == PositionCode::i8, int8_t, uint8_t>;
    const int64_t border = stored * (kMostParts - 1) + part * border_step - 1;
    const int before = part == 0 ? 0 : int{p.border_positions[border * kSliceLanes + slice_lane]};
    for_each_batch<true>(lanes, static_cast<const Code*>(p.positions), before, write);
  } else {
    using Code = std::conditional_t<kCode == PositionCode::u16, uint16_t, uint32_t>;
    for_each_batch<false>(lanes, static_cast<const Code*>(p.positions), 0, write);
  }

  if constexpr (kTile) {
    __syncthreads();
    const auto columns = static_cast<int>(min(p.panel_columns, p.columns - first_column));
    // Warps have rows.
    for (int i = thread / kExpandWarp; i < tile_rows; i += threads / kExpandWarp) {
      const int of_row = first_place + i / p.shared_rows;
      const int64_t row = of_row < groups ? row_at(of_row) + i % p.shared_rows : p.end_row;
      if (row < p.first_row || row >= p.end_row) {
        continue;
      }
      const auto copy = [&](auto* to, const auto* from, int count) {
        for (int c = lane; c < count; c += kExpandWarp) {
          to[c] = from[c];
        }
      };
      uint16_t* const to = p.dense + (row - p.first_row) * p.columns + first_column;
      const uint16_t* const from = tile + i * p.tile_columns;
      if (p.in_vectors) {
        copy(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), columns / kVector);
      } else {
        copy(to, from, columns);
      }
    }
  }
}

}  // namespace sparsellm::general_sparse
