#include "sparse/general_sparse/cuda/row_pieces.h"

#include <algorithm>
#include <bit>

namespace sparsellm::general_sparse {

RowPieces row_pieces(const Layout& layout, const ChunkGrid& grid, std::span<const uint32_t> starts,
                     std::span<const uint16_t> row_order) {
  // Of entries. A row that takes several times as long as others keeps these waiting, a warp with
  // many entries the whole device.
  constexpr int64_t kTimesMean = 2;
  constexpr int64_t kFewestEntries = 32;
  constexpr int64_t kWarpEntries = 256;
  constexpr int64_t kPieceEntries = 1024;
  constexpr int64_t kMostPieces = 256;  // of a row, whose sums a block adds
  const int64_t vector = layout.vector;
  int64_t with_entries = 0;  // groups
  for (size_t i = 1; i < starts.size(); ++i) {
    with_entries += starts[i] > starts[i - 1] ? 1 : 0;
  }
  const int64_t entries = starts.back() * vector;
  const int64_t mean = entries / std::max<int64_t>(with_entries, 1);
  const int64_t longest = std::max(kTimesMean * mean, kFewestEntries) / vector;
  const int64_t warp_units = std::max(kWarpEntries / vector, longest);
  RowPieces result{.counts = {.mean_entries = entries / std::max<int64_t>(grid.groups(), 1),
                              .longest = static_cast<int>(longest)},
                   .pieces = {},
                   .split_rows = {}};
  RowCounts& counts = result.counts;
  std::vector<RowPiece> warp_rows;
  for (int64_t window = 0; window < grid.windows(); ++window) {
    const Chunk chunk = grid.chunk(window, 0);
    for (int64_t place = 0; place < chunk.groups; ++place) {
      const uint32_t* const start = starts.data() + chunk.first_slice + place;
      const int64_t units = int64_t{start[1]} - start[0];
      if (units <= longest) {
        continue;
      }
      const int64_t in_window =
          layout.sorted ? row_order[static_cast<size_t>(chunk.first_place + place)] : place;
      const auto row = static_cast<uint32_t>(chunk.first_group + in_window);
      if (units <= warp_units) {
        warp_rows.push_back({.begin = start[0], .end = start[1], .row = row});
        continue;
      }
      const int64_t count = std::min(ceil_div(units * vector, kPieceEntries), kMostPieces);
      if (count > 1) {
        result.split_rows.push_back({.row = row,
                                     .first_partial = static_cast<uint32_t>(counts.partials),
                                     .partials = static_cast<uint32_t>(count)});
      }
      for (int64_t i = 0; i < count; ++i) {
        result.pieces.push_back(
            {.begin = start[0] + static_cast<uint32_t>(units * i / count),
             .end = start[0] + static_cast<uint32_t>(units * (i + 1) / count),
             .row = row,
             .partial = count > 1 ? static_cast<uint32_t>(counts.partials++) : kWholeRow});
      }
    }
  }
  counts.block_pieces = static_cast<int>(result.pieces.size());
  counts.warp_rows = static_cast<int>(warp_rows.size());
  counts.split_rows = static_cast<int>(result.split_rows.size());
  result.pieces.insert(result.pieces.end(), warp_rows.begin(), warp_rows.end());
  return result;
}

}  // namespace sparsellm::general_sparse
