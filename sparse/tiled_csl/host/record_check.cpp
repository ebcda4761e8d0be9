#include <algorithm>
#include <atomic>

#include "kernels/base/error.h"
#include "sparse/tiled_csl/format/location_set.h"
#include "sparse/tiled_csl/host/tile_records.h"

namespace sparsellm::tiled_csl {
namespace {

// A tile's place in its matrix.
struct Tile {
  int64_t index = 0;
  int64_t rows = 0;  // of the matrix, from the tile's first on
  int64_t columns = 0;
};

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

// That pieces follow each other as the layout says, up to the end of the record.
void check_pieces(const Tile& tile, std::span<const std::byte> record) {
  int groups = 0;
  int words = 0;
  for (size_t at = 0;; at += kPieceBytes) {
    require(record.size() >= at + kRecordAlignment,
            "tile {}: its record ends before its last piece", tile.index);
    const Piece piece(record.data() + at);
    require(piece.flags() <= (kLastPiece | kHasHosts) && piece.groups() <= kPieceGroups,
            "tile {}: a piece with flags {} and {} groups", tile.index, piece.flags(),
            piece.groups());
    require(piece.has_hosts() == (at == 0 && piece.groups() > 0),
            "tile {}: hosts in another piece than the first one with groups", tile.index);
    const size_t bytes = static_cast<size_t>(piece.bytes());
    require(bytes <= kPieceBytes && at + bytes <= record.size(),
            "tile {}: a piece of {} bytes, {} of {}", tile.index, bytes, record.size() - at,
            record.size());
    const auto head = static_cast<size_t>(kPieceHeader + (piece.has_hosts() ? kWarp : 0) +
                                          piece.words() * kWordBytes);
    const auto values = static_cast<size_t>(head_bytes(piece.has_hosts(), piece.words()));
    require(all_zero(record.subspan(at + head, values - head)),
            "tile {}: what fills up the words of a piece is not 0", tile.index);
    groups += piece.groups();
    words += piece.words();
    require(groups <= kMaxGroups && words <= kTileElements, "tile {}: {} groups and {} words",
            tile.index, groups, words);
    if (piece.last()) {
      require(at + bytes == record.size(), "tile {}: {} bytes of {} are used", tile.index,
              at + bytes, record.size());
      break;
    }
    require(record.size() >= at + kPieceBytes &&
                all_zero(record.subspan(at + bytes, kPieceBytes - bytes)),
            "tile {}: a piece that is not the last is not filled up", tile.index);
  }
  require(std::ssize(record) == record_bytes(groups, words),
          "tile {}: {} bytes for {} groups and {} words", tile.index, record.size(), groups, words);
  for_each_piece(record.data(), [&](const Piece& piece) {
    const PieceSizes sizes = next_piece(groups, words, piece.has_hosts());
    require(piece.groups() == sizes.groups && piece.words() == sizes.words,
            "tile {}: a piece of {} groups and {} words, not {} and {}", tile.index, piece.groups(),
            piece.words(), sizes.groups, sizes.words);
    groups -= sizes.groups;
    words -= sizes.words;
  });
}

// Returns how many nonzeros the tile has.
int64_t check_tile(const Tile& tile, std::span<const std::byte> record) {
  check_pieces(tile, record);
  LocationSet nonzeros;
  int64_t count = 0;
  for_each_piece(record.data(), [&](const Piece& piece) {
    for (int i = 0; i < piece.words(); ++i) {
      const uint32_t place = piece.word(i) >> 16;
      require(place < kTileElements * 2 && place % 2 == 0 && is_nonzero(piece.word(i) & 0xffff),
              "tile {}: the word {:#010x}", tile.index, piece.word(i));
    }
    piece.for_each([&](uint32_t value_bits, uint32_t place) {
      if (!is_nonzero(value_bits)) {
        require(value_bits == 0, "tile {}: a negative zero", tile.index);
        return;
      }
      const uint32_t location = place / 2;
      const uint32_t row = row_of(location);
      const uint32_t column = column_at(position_of(location));
      require(row < tile.rows && column < tile.columns,
              "tile {}: row {}, column {} is outside of the matrix", tile.index, row, column);
      require(nonzeros.insert(location), "tile {}: two values in row {}, column {}", tile.index,
              row, column);
      ++count;
    });
  });
  for_each_piece(record.data(), [&](const Piece& piece) {
    piece.for_each([&](uint32_t value_bits, uint32_t place) {
      require(value_bits != 0 || !nonzeros.contains(place / 2),
              "tile {}: a zero in the place of a nonzero", tile.index);
    });
  });
  return count;
}

}  // namespace

RecordChecker::RecordChecker(const EncodedWeight& e)
    : rows_(e.rows), columns_(e.columns), grid_(tile_grid(e.rows, e.columns)) {
  require_parts(e, {{kStarts, DType::u32, grid_.count() + 1},
                    {kRecords, DType::u8, e.part(kRecords).count()}});
  const auto starts = e.part(kStarts).values<uint32_t>();
  starts_.assign(starts.begin(), starts.end());
  require(starts_.front() == 0, "{}: the first start is {}, not 0", e.format, starts_.front());
  const int64_t bytes = e.part(kRecords).count();
  for (int64_t tile = 0; tile < grid_.count(); ++tile) {
    const int64_t begin = start(tile);
    const int64_t end = start(tile + 1);
    // Here, since records without bytes are never copied, and so never checked one by one.
    require(begin < end && end <= bytes / kRecordAlignment &&
                (end - begin) * kRecordAlignment <= kMaxRecordBytes,
            "{}: tile {} from start {} to {} of {} bytes", e.format, tile, begin, end, bytes);
  }
  require(bytes == int64_t{starts_.back()} * kRecordAlignment,
          "{}: {} bytes of records, but the last start is {}", e.format, bytes, starts_.back());
}

int64_t RecordChecker::check(int64_t first, int64_t count,
                             std::span<const std::byte> records) const {
  const int64_t stated = (start(first + count) - start(first)) * kRecordAlignment;
  require(std::ssize(records) == stated, "{} bytes of the records of {} tiles from {} on, not {}",
          records.size(), count, first, stated);
  int64_t nonzeros = 0;
  for (int64_t tile = first; tile < first + count; ++tile) {
    const auto begin = static_cast<size_t>((start(tile) - start(first)) * kRecordAlignment);
    const auto bytes = static_cast<size_t>((start(tile + 1) - start(tile)) * kRecordAlignment);
    nonzeros += check_tile({.index = tile,
                            .rows = rows_ - tile / grid_.columns * kTileRows,
                            .columns = columns_ - tile % grid_.columns * kTileColumns},
                           records.subspan(begin, bytes));
  }
  return nonzeros;
}

void validate_records(const EncodedWeight& e, ThreadPool& threads) {
  const RecordChecker checker(e);
  const TileRecords records(e);
  std::atomic<int64_t> nonzeros = 0;
  constexpr int64_t kCheckedAtOnce = 8;
  threads.parallel_for(records.grid.count(), kCheckedAtOnce, [&](int64_t begin, int64_t end) {
    nonzeros += checker.check(begin, end - begin, records.run(begin, end - begin));
  });
  require(nonzeros == e.nonzeros, "{}: {} nonzeros, but {} are stored", e.format, e.nonzeros,
          nonzeros.load());
}

}  // namespace sparsellm::tiled_csl
