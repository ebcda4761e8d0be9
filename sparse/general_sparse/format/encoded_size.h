#pragma once

#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// Fillers, and zeros that bridge gaps or stand in shared positions, are fewer than nonzeros
// wherever these are many: 32-bit starts are enough for a matrix with this many nonzeros.
inline constexpr int64_t kMostNonzeros = std::numeric_limits<uint32_t>::max() / 2;

// How much there is of an encoding (layout.h) whose slices have `units` together.

constexpr int64_t entries_in(const Layout& layout, int64_t units) {
  return units * layout.interleave * layout.vector;
}

// Elements of the part positions.
inline int64_t position_count(const Layout& layout, const ChunkGrid& grid, int64_t units) {
  return layout.positions == PositionCode::bits ? grid.words() : entries_in(layout, units);
}

// Of all parts.
inline int64_t encoded_bytes(const Layout& layout, const ChunkGrid& grid, int64_t units,
                             DType dtype) {
  return std::ssize(to_text(layout)) + (grid.slices() + 1) * size_of(DType::u32) +
         (layout.sorted ? grid.places() * size_of(DType::u16) : 0) +
         position_count(layout, grid, units) * size_of(dtype_of(layout.positions)) +
         entries_in(layout, units) * layout.shared_rows * size_of(dtype);
}

// Throws Error for more units than starts of 32 bits reach.
inline void require_starts_reach(const Layout& layout, int64_t units) {
  require(units <= int64_t{UINT32_MAX},
          "a weight has more entries than starts of 32 bits reach in the layout {}",
          to_text(layout));
}

}  // namespace sparsellm::general_sparse
