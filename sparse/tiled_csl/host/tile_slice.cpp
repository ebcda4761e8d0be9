#include "sparse/tiled_csl/host/tile_slice.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"

namespace sparsellm::tiled_csl {
namespace {

// What the versions have in common: numbers that say where tiles begin, and what these count.
struct Parts {
  std::string_view starts;
  std::string_view data;
  DType dtype;         // of the data
  int64_t unit_bytes;  // that starts count
};
constexpr Parts kPaperParts{kTileOffsets, kWords, DType::u32, sizeof(uint32_t)};
constexpr Parts kRecordParts{kStarts, kRecords, DType::u8, kRecordAlignment};

const Parts& parts_of(const EncodedWeight& e) {
  return e.version == kPaperVersion ? kPaperParts : kRecordParts;
}

// The tiles that make up a range of a matrix; none if it cuts through a tile.
std::optional<Range> tiles_of(Range range, int64_t size, int64_t tile) {
  const bool inside = range.begin >= 0 && range.count >= 0 && range.begin <= size - range.count;
  const int64_t end = range.begin + (inside ? range.count : 0);
  if (!inside || range.begin % tile != 0 || (end % tile != 0 && end != size)) {
    return std::nullopt;
  }
  return Range{.begin = range.begin / tile, .count = ceil_div(range.count, tile)};
}

int64_t nonzeros_in(const EncodedWeight& e, Range tiles) {
  int64_t nonzeros = 0;
  for (int64_t tile = tiles.begin; tile < tiles.begin + tiles.count; ++tile) {
    if (e.version == kPaperVersion) {
      nonzeros += std::ssize(EncodedTiles(e).nonzeros(tile));
    } else {
      for_each_piece(TileRecords(e).record(tile), [&](const Piece& piece) {
        piece.for_each(
            [&](uint32_t value_bits, uint32_t) { nonzeros += is_nonzero(value_bits) ? 1 : 0; });
      });
    }
  }
  return nonzeros;
}

// Puts runs of tiles, of encodings of one version, one after the other.
class Joiner {
 public:
  explicit Joiner(const EncodedWeight& like)
      : parts_(parts_of(like)), joined_(header_of(like.version, like.dtype, 0, like.columns)) {}

  EncodedWeight& header() { return joined_; }  // its sizes are for the caller to set

  void add(const EncodedWeight& from, Range tiles) {
    runs_.push_back({.from = &from, .tiles = tiles});
    tiles_ += tiles.count;
    units_ += int64_t{start(from, tiles.begin + tiles.count)} - start(from, tiles.begin);
  }

  // Nothing if there are more than starts count.
  std::optional<EncodedWeight> finish() {
    if (units_ > int64_t{UINT32_MAX}) {
      return std::nullopt;
    }
    auto starts = new_part<uint32_t>(std::string(parts_.starts), DType::u32, tiles_ + 1);
    auto data =
        new_part<std::byte>(std::string(parts_.data), parts_.dtype, units_ * parts_.unit_bytes);
    auto next_start = starts.values.begin();
    auto next_byte = data.values.begin();
    *next_start = 0;
    for (const Run& run : runs_) {
      const uint32_t shift = *next_start - start(*run.from, run.tiles.begin);  // modulo 2^32
      for (int64_t tile = run.tiles.begin; tile < run.tiles.begin + run.tiles.count; ++tile) {
        *++next_start = start(*run.from, tile + 1) + shift;
      }
      const auto bytes_before = [&](int64_t tile) {
        return static_cast<size_t>(start(*run.from, tile) * parts_.unit_bytes);
      };
      const size_t begin = bytes_before(run.tiles.begin);
      const size_t end = bytes_before(run.tiles.begin + run.tiles.count);
      const auto bytes = run.from->part(parts_.data).bytes.subspan(begin, end - begin);
      next_byte = std::copy(bytes.begin(), bytes.end(), next_byte);
      joined_.nonzeros += nonzeros_in(*run.from, run.tiles);
    }
    joined_.parts.push_back(std::move(starts.part));
    joined_.parts.push_back(std::move(data.part));
    return std::move(joined_);
  }

 private:
  struct Run {
    const EncodedWeight* from = nullptr;
    Range tiles;
  };
  uint32_t start(const EncodedWeight& e, int64_t tile) const {
    return e.part(parts_.starts).values<uint32_t>()[static_cast<size_t>(tile)];
  }

  const Parts& parts_;
  EncodedWeight joined_;
  std::vector<Run> runs_;
  int64_t tiles_ = 0;
  int64_t units_ = 0;
};

}  // namespace

std::optional<EncodedWeight> slice_tiles(const EncodedWeight& e, Axis axis, Range range) {
  const Range rows = axis == Axis::rows ? range : Range{.begin = 0, .count = e.rows};
  const Range columns = axis == Axis::columns ? range : Range{.begin = 0, .count = e.columns};
  const std::optional<Range> i = tiles_of(rows, e.rows, kTileRows);
  const std::optional<Range> j = tiles_of(columns, e.columns, kTileColumns);
  if (!i || !j) {
    return std::nullopt;
  }
  Joiner joiner(e);
  joiner.header().rows = rows.count;
  joiner.header().columns = columns.count;
  const int64_t grid_columns = tile_grid(e.rows, e.columns).columns;
  for (int64_t row = i->begin; row < i->begin + i->count; ++row) {
    joiner.add(e, {.begin = row * grid_columns + j->begin, .count = j->count});
  }
  return joiner.finish();
}

std::optional<EncodedWeight> concat_rows_of_tiles(std::span<const EncodedWeight* const> parts) {
  if (parts.empty()) {
    return std::nullopt;
  }
  const EncodedWeight& like = *parts.front();
  Joiner joiner(like);
  int64_t& rows = joiner.header().rows;
  for (const EncodedWeight* part : parts) {
    if (part->format != kName || part->version != like.version || part->dtype != like.dtype ||
        part->columns != like.columns || rows % kTileRows != 0) {
      return std::nullopt;
    }
    rows = checked_add(rows, part->rows, "rows of a joined weight");
    joiner.add(*part, {.begin = 0, .count = tile_grid(part->rows, part->columns).count()});
  }
  return joiner.finish();
}

}  // namespace sparsellm::tiled_csl
