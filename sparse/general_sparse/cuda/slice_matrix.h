#pragma once

#include <cstdint>

namespace sparsellm::general_sparse {

inline constexpr int kSliceLanes = 32;

// A slice that a thread block multiplies.
struct alignas(16) ScheduledSlice {
  uint32_t slice = 0;         // its number, panel after panel, and window after window in these
  uint32_t units_before = 0;  // of the slices before it in the schedule
  uint32_t first_unit = 0;    // where its entries begin
  uint32_t panel_end = 0;     // where the block's slices of this panel end in the schedule
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
  int groups = 0;  // of rows
  int panel_columns = 0;
  int panels = 0;
  int window_groups = 0;
  int window_slices = 0;
  int panel_slices = 0;  // slices of all windows in one panel
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
  bool x_pairs = false;  // columns of x can be loaded in pairs
};

// Warps that share a slice do so at the borders between kMostParts parts, in units from its begin.
inline constexpr int kMostParts = 32;
constexpr uint32_t part_border(uint32_t units, uint32_t border) {
  return units / kMostParts * border + units % kMostParts * border / kMostParts;
}

// The columns of a panel that x has room for in shared memory.
constexpr int64_t staged_columns(const SliceMatrix& m) {
  const int whole = (m.columns + 7) / 8 * 8;
  return whole < m.panel_columns ? whole : m.panel_columns;
}

}  // namespace sparsellm::general_sparse
