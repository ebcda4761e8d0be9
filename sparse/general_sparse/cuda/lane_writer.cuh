#pragma once

#include <cstdint>

#include "sparse/general_sparse/cuda/ordered_entries.cuh"
#include "sparse/general_sparse/cuda/slice_matrix.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// Of a row group in a panel: elements of a dense matrix of 16-bit values.
struct GroupElements {
  const uint16_t* first = nullptr;  // of the first row, in the panel
  int64_t row_stride = 0;
  int rows = 0;  // 0: there is no such group

  // -0 is a 0, and so is what rows have that do not exist.
  __device__ uint16_t at(int row, int column) const {
    const uint16_t bits = row < rows ? first[row * row_stride + column] : uint16_t{0};
    return (bits & 0x7fffu) == 0 ? uint16_t{0} : bits;
  }
};

// Where the entries of a lane go in an encoding.
template <class Position>
struct LaneTarget {
  Position* positions = nullptr;  // of all lanes
  uint16_t* values = nullptr;     // likewise
  // SliceMatrix::border_positions, of the lane's slice; null: none are wanted.
  uint16_t* border_positions = nullptr;
  int64_t first_unit = 0;
  uint32_t units = 0;
  int lane = 0;
  int lanes = kSliceLanes;  // of a slice; 1: groups are apart
  int vector = 1;
  int shared_rows = 1;
};

// What group_writer.h writes of a lane, fillers included. All lanes of a warp write entries of one
// number at a time, which lie side by side.
template <class Position, class Entries>
__device__ void write_lane(Entries& entries, const GroupElements& elements,
                           const LaneTarget<Position>& to) {
  uint16_t position = 0;
  int border = 1;
  for (uint32_t unit = 0;; ++unit) {
    if (to.border_positions != nullptr) {
      for (; border < kMostParts && part_border(to.units, static_cast<uint32_t>(border)) == unit;
           ++border) {
        to.border_positions[(border - 1) * kSliceLanes + to.lane] = position;
      }
    }
    if (unit == to.units) {
      return;
    }
    const int64_t number = ((to.first_unit + unit) * to.lanes + to.lane) * to.vector;
    for (int i = 0; i < to.vector; ++i) {
      const LaneEntry entry = entries.next();
      position = static_cast<uint16_t>(position + entry.code);  // where codes are differences
      to.positions[number + i] = static_cast<Position>(entry.code);
      uint16_t* const values = to.values + (number + i) * to.shared_rows;
      for (int row = 0; row < to.shared_rows; ++row) {
        values[row] = entry.column == kNoColumn ? uint16_t{0} : elements.at(row, entry.column);
      }
    }
  }
}

}  // namespace sparsellm::general_sparse
