#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

// Consecutive GroupTiles of an encoding.
struct Run {
  const EncodedWeight* from = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

// A weight like `like` but of this size, made of these GroupTiles; nothing if there are more values
// than offsets hold.
std::optional<EncodedWeight> join_runs(std::span<const Run> runs, const EncodedWeight& like,
                                       int64_t rows, int64_t columns) {
  int64_t groups = 0;
  int64_t value_count = 0;
  for (const Run& run : runs) {
    const std::span offsets = run.from->part(kOffsets).values<uint32_t>();
    groups += run.count;
    value_count += int64_t{offsets[static_cast<size_t>(run.first + run.count)]} -
                   int64_t{offsets[static_cast<size_t>(run.first)]};
  }
  if (value_count > int64_t{UINT32_MAX}) {
    return std::nullopt;
  }
  NewPart offsets = new_part<uint32_t>(std::string(kOffsets), DType::u32, groups + 1);
  NewPart bitmaps = new_part<uint64_t>(std::string(kBitmaps), DType::u64, groups * kGroupBitmaps);
  NewPart values = new_part<uint16_t>(std::string(kValues), like.dtype, value_count);

  offsets.values[0] = 0;
  auto next_offset = offsets.values.begin() + 1;
  auto next_bitmap = bitmaps.values.begin();
  auto next_value = values.values.begin();
  for (const Run& run : runs) {
    const PaperParts from(*run.from);
    const uint32_t begin = from.offsets[static_cast<size_t>(run.first)];
    const uint32_t end = from.offsets[static_cast<size_t>(run.first + run.count)];
    const auto shift = static_cast<uint32_t>(next_value - values.values.begin());
    next_offset = std::transform(from.offsets.begin() + run.first + 1,
                                 from.offsets.begin() + run.first + run.count + 1, next_offset,
                                 [&](uint32_t offset) { return offset - begin + shift; });
    next_bitmap = std::copy_n(from.bitmaps.begin() + run.first * kGroupBitmaps,
                              run.count * kGroupBitmaps, next_bitmap);
    next_value = std::copy(from.values.begin() + begin, from.values.begin() + end, next_value);
  }

  int64_t nonzeros = 0;
  for (uint64_t bitmap : bitmaps.values) {
    nonzeros += std::popcount(bitmap);
  }
  EncodedWeight e{.format = like.format,
                  .version = like.version,
                  .dtype = like.dtype,
                  .rows = rows,
                  .columns = columns,
                  .nonzeros = nonzeros,
                  .parts = {}};
  e.parts.push_back(std::move(offsets.part));
  e.parts.push_back(std::move(bitmaps.part));
  e.parts.push_back(std::move(values.part));
  return e;
}

// Whether a range of `size` rows or columns is one of whole GroupTiles, or goes up to the end.
bool at_group_borders(Range range, int64_t size) {
  const int64_t end = range.begin + range.count;
  return range.begin % kGroupTile == 0 && (end % kGroupTile == 0 || end == size);
}

}  // namespace

std::optional<EncodedWeight> slice_rows_paper(const EncodedWeight& e, Range rows) {
  if (!at_group_borders(rows, e.rows)) {
    return std::nullopt;
  }
  const int64_t first_row = rows.begin / kGroupTile;
  const GroupGrid sliced = group_grid(rows.count, e.columns);
  const Run run{.from = &e, .first = first_row * sliced.columns, .count = sliced.count()};
  return join_runs({&run, 1}, e, rows.count, e.columns);
}

std::optional<EncodedWeight> slice_columns_paper(const EncodedWeight& e, Range columns) {
  if (!at_group_borders(columns, e.columns)) {
    return std::nullopt;
  }
  const GroupGrid grid = group_grid(e.rows, e.columns);
  const GroupGrid sliced = group_grid(e.rows, columns.count);
  std::vector<Run> runs;
  for (int64_t row = 0; row < grid.rows; ++row) {
    runs.push_back({.from = &e,
                    .first = row * grid.columns + columns.begin / kGroupTile,
                    .count = sliced.columns});
  }
  return join_runs(runs, e, e.rows, columns.count);
}

std::optional<EncodedWeight> concat_rows_paper(std::span<const EncodedWeight* const> parts) {
  std::vector<Run> runs;
  int64_t rows = 0;
  for (const EncodedWeight* part : parts) {
    if (rows % kGroupTile != 0) {
      return std::nullopt;
    }
    runs.push_back(
        {.from = part, .first = 0, .count = group_grid(part->rows, part->columns).count()});
    rows += part->rows;
  }
  return join_runs(runs, *parts.front(), rows, parts.front()->columns);
}

}  // namespace sparsellm::tca_bme
