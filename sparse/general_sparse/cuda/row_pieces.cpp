#include "sparse/general_sparse/cuda/row_pieces.h"

#include <algorithm>
#include <bit>

namespace sparsellm::general_sparse {

RowPieces row_pieces(const Parts& parts) {
  // A row that takes several times as long as others keeps these waiting, few threads with many
  // entries the whole device.
  constexpr int64_t kTimesMean = 8;
  constexpr int64_t kFewestEntries = 128;
  constexpr int64_t kMostEntries = 4096;
  constexpr int64_t kPieceEntries = 2048;
  const int64_t vector = parts.layout.vector;
  const int64_t rows = std::max<int64_t>(parts.grid.groups(), 1);
  const int64_t mean = int64_t{parts.starts.back()} * vector / rows;
  const int64_t longest = std::clamp(kTimesMean * mean, kFewestEntries, kMostEntries) / vector;
  RowPieces result{.longest = static_cast<int>(longest), .pieces = {}, .split_rows = {}};
  for (int64_t window = 0; window < parts.grid.windows(); ++window) {
    const Chunk chunk = parts.grid.chunk(window, 0);
    for (int64_t place = 0; place < chunk.groups; ++place) {
      const uint32_t* const start = parts.starts.data() + chunk.first_slice + place;
      const int64_t units = int64_t{start[1]} - start[0];
      if (units <= longest) {
        continue;
      }
      const int64_t in_window =
          parts.layout.sorted ? parts.row_order[static_cast<size_t>(chunk.first_place + place)]
                              : place;
      const auto row = static_cast<uint32_t>(chunk.first_group + in_window);
      const int64_t count = ceil_div(units * vector, kPieceEntries);
      if (count > 1) {
        result.split_rows.push_back({.row = row,
                                     .first_partial = static_cast<uint32_t>(result.partials),
                                     .partials = static_cast<uint32_t>(count)});
      }
      for (int64_t i = 0; i < count; ++i) {
        result.pieces.push_back(
            {.begin = start[0] + static_cast<uint32_t>(units * i / count),
             .end = start[0] + static_cast<uint32_t>(units * (i + 1) / count),
             .row = row,
             .partial = count > 1 ? static_cast<uint32_t>(result.partials++) : kWholeRow});
      }
    }
  }
  return result;
}

}  // namespace sparsellm::general_sparse
