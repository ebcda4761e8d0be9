#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"

namespace sparsellm::general_sparse {
namespace {

// Of an array.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
};

// Chunks that follow each other in an encoding, at least one.
struct ChunkRun {
  ChunkRun(const EncodedWeight& weight, const Parts& parts, Range chunks) : from(&weight) {
    const Chunk first = parts.grid.chunk(chunks.begin);
    const Chunk last = parts.grid.chunk(chunks.begin + chunks.count - 1);
    const int64_t last_words = last.group_words * last.slices * parts.layout.interleave;
    slices = {.begin = first.first_slice, .end = last.first_slice + last.slices};
    places = {.begin = first.first_place, .end = last.first_place + last.groups};
    words = {.begin = first.first_word, .end = last.first_word + last_words};
    units = {.begin = parts.starts[static_cast<size_t>(slices.begin)],
             .end = parts.starts[static_cast<size_t>(slices.end)]};
  }

  const EncodedWeight* from;
  Extent slices;
  Extent places;
  Extent words;  // of bits
  Extent units;  // of entries
};

int64_t total(std::span<const ChunkRun> runs, Extent ChunkRun::*extent) {
  int64_t count = 0;
  for (const ChunkRun& run : runs) {
    count += (run.*extent).count();
  }
  return count;
}

// An array of which runs have `bytes` for each element of an extent.
EncodedPart join_array(std::span<const ChunkRun> runs, const EncodedPart& like,
                       Extent ChunkRun::*extent, int64_t bytes) {
  auto joined = new_part<std::byte>(like.name, like.dtype, total(runs, extent) * bytes);
  auto next = joined.values.begin();
  for (const ChunkRun& run : runs) {
    const std::span<const std::byte> all = run.from->part(like.name).bytes;
    next =
        std::copy_n(all.begin() + (run.*extent).begin * bytes, (run.*extent).count() * bytes, next);
  }
  return std::move(joined.part);
}

EncodedPart join_starts(std::span<const ChunkRun> runs) {
  auto starts = new_part<uint32_t>(kStarts, DType::u32, total(runs, &ChunkRun::slices) + 1);
  auto next = starts.values.begin();
  uint32_t units = 0;
  for (const ChunkRun& run : runs) {
    const uint32_t shift = units - static_cast<uint32_t>(run.units.begin);  // modulo 2^32
    const auto first = run.from->part(kStarts).values<uint32_t>().begin() + run.slices.begin;
    next = std::transform(first, first + run.slices.count(), next,
                          [&](uint32_t start) { return start + shift; });
    units += static_cast<uint32_t>(run.units.count());
  }
  *next = units;
  return std::move(starts.part);
}

int64_t count_values(const EncodedPart& values) {
  int64_t nonzeros = 0;
  visit_float(values.dtype, [&]<class T>(T) {
    for (const T value : values.values<T>()) {
      nonzeros += is_zero(value) ? 0 : 1;
    }
  });
  return nonzeros;
}

// A weight like `like` but of this size, made of these chunks, all in its layout; nothing if there
// are more entries than starts reach.
std::optional<EncodedWeight> join_chunks(std::span<const ChunkRun> runs, const EncodedWeight& like,
                                         int64_t rows, int64_t columns) {
  if (total(runs, &ChunkRun::units) > int64_t{UINT32_MAX}) {
    return std::nullopt;
  }
  const Layout layout = read_layout(like);
  const int64_t unit_entries = int64_t{layout.interleave} * layout.vector;
  EncodedWeight e{.format = like.format,
                  .version = like.version,
                  .dtype = like.dtype,
                  .rows = rows,
                  .columns = columns,
                  .nonzeros = 0,
                  .parts = {}};
  const EncodedPart& text = like.part(kLayout);
  e.parts.push_back({.name = text.name, .dtype = text.dtype, .bytes = text.bytes, .memory = {}});
  take_into_memory(e.parts.back());
  e.parts.push_back(join_starts(runs));
  if (layout.sorted) {
    e.parts.push_back(
        join_array(runs, like.part(kRowOrder), &ChunkRun::places, size_of(DType::u16)));
  }
  const int64_t code_bytes = size_of(dtype_of(layout.positions));
  e.parts.push_back(
      layout.positions == PositionCode::bits
          ? join_array(runs, like.part(kPositions), &ChunkRun::words, code_bytes)
          : join_array(runs, like.part(kPositions), &ChunkRun::units, unit_entries * code_bytes));
  e.parts.push_back(join_array(runs, like.part(kValues), &ChunkRun::units,
                               unit_entries * layout.shared_rows * size_of(e.dtype)));
  e.nonzeros = count_values(e.parts.back());
  return e;
}

// What of `size` elements a range has, cut into pieces of `step`, the last of which may be smaller;
// nothing if it cuts through one.
std::optional<Range> pieces_of(Range range, int64_t size, int64_t step) {
  const int64_t end = range.begin + range.count;
  if (range.begin % step != 0 || (end % step != 0 && end != size)) {
    return std::nullopt;
  }
  return Range{.begin = range.begin / step, .count = ceil_div(range.count, step)};
}

}  // namespace

std::optional<EncodedWeight> slice_rows(const EncodedWeight& e, Range rows) {
  require_inside({.rows = rows, .columns = {.begin = 0, .count = e.columns}}, e.rows, e.columns);
  const Parts parts(e);
  const std::optional<Range> windows = pieces_of(rows, e.rows, parts.layout.window_rows);
  if (!windows) {
    return std::nullopt;
  }
  std::vector<ChunkRun> runs;
  if (windows->count > 0) {
    runs.emplace_back(e, parts,
                      Range{.begin = windows->begin * parts.grid.panels(),
                            .count = windows->count * parts.grid.panels()});
  }
  return join_chunks(runs, e, rows.count, e.columns);
}

std::optional<EncodedWeight> slice_columns(const EncodedWeight& e, Range columns) {
  require_inside({.rows = {.begin = 0, .count = e.rows}, .columns = columns}, e.rows, e.columns);
  const Parts parts(e);
  // Without columns there is a panel, too, which is none of these.
  const std::optional<Range> panels =
      columns.count == 0 ? std::nullopt : pieces_of(columns, e.columns, parts.grid.panel_columns());
  if (!panels) {
    return std::nullopt;
  }
  std::vector<ChunkRun> runs;
  for (int64_t window = 0; window < parts.grid.windows(); ++window) {
    runs.emplace_back(
        e, parts,
        Range{.begin = window * parts.grid.panels() + panels->begin, .count = panels->count});
  }
  return join_chunks(runs, e, e.rows, columns.count);
}

std::optional<EncodedWeight> concat_rows(std::span<const EncodedWeight* const> parts) {
  joined_rows(parts);  // throws Error
  std::vector<ChunkRun> runs;
  const EncodedWeight* like = parts.front();
  int64_t rows = 0;
  for (const EncodedWeight* part : parts) {
    if (part->rows == 0) {
      continue;  // its layout says nothing
    }
    like = rows == 0 ? part : like;
    const Parts added(*part);
    if (added.layout != read_layout(*like) || rows % added.layout.window_rows != 0) {
      return std::nullopt;
    }
    runs.emplace_back(*part, added, Range{.begin = 0, .count = added.grid.chunks()});
    rows += part->rows;
  }
  return join_chunks(runs, *like, rows, like->columns);
}

}  // namespace sparsellm::general_sparse
