#pragma once

#include <cstdint>

namespace sparsellm::general_sparse {

inline constexpr int kSliceLanes = 32;

// A slice that a thread block multiplies: all that a kernel would have to compute by divisions.
struct alignas(16) ScheduledSlice {
  uint32_t units_before = 0;  // of the slices before it in the schedule
  uint32_t first_unit = 0;    // where its entries begin
  uint32_t panel_end = 0;     // where the block's slices of this panel end in the schedule
  uint32_t panel = 0;
  uint32_t stored = 0;       // its number in the encoding
  uint32_t first_place = 0;  // in row_order
  // Which its places count from: of the window, or, if rows are in order, of the slice.
  uint32_t first_group = 0;
  uint32_t groups = 0;
};

// An interleaved encoding on a CUDA device, as kernels see it (slice_product.cuh).
struct SliceMatrix {
  const uint16_t* row_order = nullptr;  // null: rows are in order
  const uint8_t* positions = nullptr;
  const uint8_t* values = nullptr;
  // Of differences: u16 [slices as stored][kMostParts - 1][kSliceLanes], for each lane the position
  // of the entry before the border (part_border()).
  const uint16_t* border_positions = nullptr;
  // The slices of each of `shares` thread blocks, one block after the other, and one more entry for
  // units_before; in a block panels ascend. share_begins [shares + 1]: the first of each block.
  const ScheduledSlice* schedule = nullptr;
  const uint32_t* share_begins = nullptr;
  int shares = 0;
  int rows = 0;
  int columns = 0;
  int panel_columns = 0;
  int panels = 0;
  int64_t slices = 0;
};

struct SliceOperands {
  const void* x = nullptr;  // [tokens, x_stride]
  void* y = nullptr;        // [tokens, y_stride]
  const void* bias = nullptr;
  float* partials = nullptr;  // [tiles, panels, rows, tokens of a tile], with several panels
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  int tokens = 0;
  bool relu = false;
  bool x_aligned = false;  // rows of x, for loads of columns_at_once()
};

// Warps that share a slice do so at the borders between kMostParts parts, in units from its begin.
inline constexpr int kMostParts = 32;
constexpr uint32_t part_border(uint32_t units, uint32_t border) {
  return units / kMostParts * border + units % kMostParts * border / kMostParts;
}

// The warps of a block share the units of its slices in a panel evenly. The unit, of these, that
// warp `number` of 2^log_warps begins with; that of the number after the last one is their end.
constexpr uint32_t first_unit_of_warp(uint32_t units, uint32_t number, int log_warps) {
  return static_cast<uint32_t>(uint64_t{units} * number >> log_warps);
}
// The border of parts in a slice of `units` that is nearest to a unit of it: there a warp begins.
constexpr uint32_t nearest_border(uint32_t unit, uint32_t units) {
  return units == 0 ? 0 : (unit * kMostParts + units / 2) / units;
}

// Columns of a token that a thread copies to shared memory by one load.
constexpr int columns_at_once(int tile_tokens) { return tile_tokens == 1 ? 8 : 4; }

// The columns of a panel that x has room for in shared memory.
constexpr int64_t staged_columns(const SliceMatrix& m) {
  const int whole = (m.columns + 7) / 8 * 8;
  return whole < m.panel_columns ? whole : m.panel_columns;
}

}  // namespace sparsellm::general_sparse
