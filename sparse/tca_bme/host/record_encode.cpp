#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

static_assert(std::endian::native == std::endian::little, "the parts are little-endian");

constexpr int64_t kRecordsPerRange = 8;
constexpr RecordLayout kTile{.chunks = kFewChunks, .values = RecordValues::single};
constexpr int32_t kMaxColumns = kManyChunks * kChunkColumns;

// The elements of a record, row by row, as bits; 0 outside of the matrix.
using RecordElements = std::array<uint16_t, kRecordRows * kMaxColumns>;

// Of 64 x 64 elements: the smallest record that there is.
struct TileCounts {
  int32_t nonzeros = 0;
  int32_t pairs = 0;  // with a nonzero
};

void copy_record(const Tensor& w, int64_t row, int64_t column, int64_t record_columns,
                 RecordElements& elements) {
  const int64_t rows = std::min<int64_t>(kRecordRows, w.size(0) - row);
  const int64_t columns = std::min(record_columns, w.size(1) - column);
  if (rows < kRecordRows || columns < record_columns) {
    elements.fill(0);
  }
  const int64_t item = size_of(w.dtype());
  const auto* const first =
      static_cast<const std::byte*>(w.raw()) + (row * w.row_stride() + column) * item;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(elements.data() + r * record_columns, first + r * w.row_stride() * item,
                static_cast<size_t>(columns * item));
  }
}

uint32_t load_pair(const uint16_t* first) {
  uint32_t pair;
  std::memcpy(&pair, first, sizeof(pair));
  return pair;
}

// Bit 0: the first element of a pair is neither 0 nor -0; bit 16: the second is not.
uint32_t nonzero_bits(uint32_t pair) {
  constexpr uint32_t kMagnitudes = 0x7fff7fff;
  // The sum carries into the top bit of an element unless its magnitude is 0, and no further.
  return ((pair & kMagnitudes) + kMagnitudes) >> 15 & 0x00010001;
}

TileCounts count_tile(const RecordElements& elements) {
  TileCounts counts;
  for (int32_t i = 0; i < kRecordRows * kTile.columns(); i += 2) {
    const uint32_t bits = nonzero_bits(load_pair(elements.data() + i));
    counts.nonzeros += static_cast<int32_t>((bits & 1) + (bits >> 16));
    counts.pairs += bits != 0 ? 1 : 0;
  }
  return counts;
}

// What a record holds, the values with room for one that is stored but does not count.
struct RecordContent {
  std::array<uint16_t, kManyChunks * kMaskWords> masks;
  std::array<uint16_t, kManyChunks * kChunkOffsets> offsets;
  std::array<uint16_t, kManyChunks * kChunkElements + 2> values;
};

// Returns the number of values. Stores a value wherever the next one that counts goes, so that no
// branch depends on the bits.
template <bool kPairs>
int32_t fill_content(const RecordLayout& layout, const RecordElements& elements,
                     RecordContent& content) {
  const int32_t columns = layout.columns();
  content.masks.fill(0);
  uint32_t count = 0;
  const auto add_lane_values = [&](int32_t chunk, int32_t i, int32_t par, int32_t t) {
    content.offsets[static_cast<size_t>(offset_index(chunk, i, par, t))] =
        static_cast<uint16_t>(static_cast<uint32_t>(layout.header_bytes()) + 2 * count);
    uint16_t* const words = content.masks.data() + mask_word(layout, chunk, 0, t, par);
    for (int32_t p = 0; p < kHalves; ++p) {
      const uint16_t* const first = elements.data() + (16 * i + 8 * par) * columns +
                                    chunk * kChunkColumns + 8 * p + kHalves * t;
      for (int32_t g = 0; g < kLaneRows; ++g) {
        const uint32_t pair = load_pair(first + g * columns);
        const uint32_t bits = nonzero_bits(pair);
        uint16_t* const next = content.values.data() + count;
        if constexpr (kPairs) {
          const uint32_t without_negative_zeros = pair & (bits * 0xffff);
          std::memcpy(next, &without_negative_zeros, sizeof(without_negative_zeros));
          const uint32_t any = (bits | bits >> 16) & 1;
          words[g * 8] |= static_cast<uint16_t>(any << (2 * i + p + 8 * (chunk % 2)));
          count += 2 * any;
        } else {
          next[0] = static_cast<uint16_t>(pair);
          next[bits & 1] = static_cast<uint16_t>(pair >> 16);
          words[g * 8] |= static_cast<uint16_t>(((bits | bits >> 8) & 0x0101) << (2 * i + p));
          count += (bits & 1) + (bits >> 16);
        }
      }
    }
  };
  for (int32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    for (int32_t i = 0; i < kRowTiles; ++i) {
      for (int32_t par = 0; par < kHalves; ++par) {
        for (int32_t t = 0; t < kLanesInRow; ++t) {
          add_lane_values(chunk, i, par, t);
        }
      }
    }
  }
  return static_cast<int32_t>(count);
}

void write_record(const RecordLayout& layout, const RecordContent& content, int32_t values,
                  std::span<std::byte> record) {
  auto* next = record.data();
  const auto append = [&](const uint16_t* from, int32_t bytes) {
    std::memcpy(next, from, static_cast<size_t>(bytes));
    next += bytes;
  };
  append(content.masks.data(), layout.mask_bytes());
  append(content.offsets.data(), layout.header_bytes() - layout.mask_bytes());
  append(content.values.data(), values * int32_t{sizeof(uint16_t)});
  std::fill(next, record.data() + record.size(), std::byte{0});
}

std::vector<TileCounts> count_tiles(const Tensor& w, ThreadPool& threads) {
  const RecordGrid tiles = record_grid(w.size(0), w.size(1), kTile);
  std::vector<TileCounts> counts(static_cast<size_t>(tiles.count()));
  threads.parallel_for(tiles.count(), kRecordsPerRange, [&](int64_t begin, int64_t end) {
    RecordElements elements;
    for (int64_t tile = begin; tile < end; ++tile) {
      copy_record(w, tiles.row_block(tile) * kRecordRows, tiles.column(tile) * kTile.columns(),
                  kTile.columns(), elements);
      counts[static_cast<size_t>(tile)] = count_tile(elements);
    }
  });
  return counts;
}

// The number of bits that are set in a record.
int32_t record_bits(std::span<const TileCounts> counts, const RecordLayout& layout,
                    int64_t tile_columns, int64_t row_block, int64_t column) {
  const int64_t tiles = layout.chunks / kFewChunks;
  const int64_t begin = column * tiles;
  const int64_t end = std::min(begin + tiles, tile_columns);
  int32_t bits = 0;
  for (int64_t tile = begin; tile < end; ++tile) {
    const TileCounts& tile_counts = counts[static_cast<size_t>(row_block * tile_columns + tile)];
    bits += layout.pairs() ? tile_counts.pairs : tile_counts.nonzeros;
  }
  return bits;
}

int64_t encoded_bytes(std::span<const TileCounts> counts, const RecordLayout& layout, int64_t rows,
                      int64_t columns) {
  const RecordGrid grid = record_grid(rows, columns, layout);
  const int64_t tile_columns = record_grid(rows, columns, kTile).columns;
  int64_t bytes = (grid.count() + 1 + kLayoutWords) * int64_t{sizeof(uint32_t)};
  for (int64_t r = 0; r < grid.count(); ++r) {
    bytes += layout.record_bytes(
        record_bits(counts, layout, tile_columns, grid.row_block(r), grid.column(r)));
  }
  return bytes;
}

// The fastest layout for this many nonzeros, or for LayoutFor::size the first of those after it
// that takes noticeably less. Not for less: few chunks in a record instead of many, and the other
// way round, are some 0.15 % of a large matrix, and many of a narrow one.
RecordLayout choose_layout(LayoutFor goal, std::span<const TileCounts> counts, int64_t rows,
                           int64_t columns, int64_t nonzeros) {
  constexpr int64_t kNoticeable = 256;  // one byte in this many
  constexpr RecordLayout kOthers[] = {{.chunks = kManyChunks, .values = RecordValues::single},
                                      {.chunks = kFewChunks, .values = RecordValues::single},
                                      {.chunks = kManyChunks, .values = RecordValues::pair}};
  RecordLayout chosen = record_layout_for(rows * columns, nonzeros);
  if (goal == LayoutFor::speed) {
    return chosen;
  }
  int64_t fewest = encoded_bytes(counts, chosen, rows, columns);
  for (const RecordLayout& other : kOthers) {
    const int64_t bytes = encoded_bytes(counts, other, rows, columns);
    if (bytes + bytes / kNoticeable < fewest) {
      chosen = other;
      fewest = bytes;
    }
  }
  return chosen;
}

void fill_starts(std::span<const TileCounts> counts, const RecordLayout& layout,
                 const RecordGrid& grid, int64_t tile_columns, std::span<uint32_t> starts) {
  starts[0] = 0;
  for (int64_t r = 0; r < grid.count(); ++r) {
    const int32_t bytes = layout.record_bytes(
        record_bits(counts, layout, tile_columns, grid.row_block(r), grid.column(r)));
    starts[static_cast<size_t>(r + 1)] =
        starts[static_cast<size_t>(r)] + static_cast<uint32_t>(bytes / kRecordAlignment);
  }
}

int64_t nonzeros_of(std::span<const TileCounts> counts) {
  int64_t nonzeros = 0;
  for (const TileCounts& tile : counts) {
    nonzeros += tile.nonzeros;
  }
  return nonzeros;
}

void require_starts_reach_all(const Tensor& w, int64_t nonzeros, RecordsFor goal) {
  require(starts_hold(w.size(0), w.size(1), nonzeros, goal),
          "{} nonzeros are more than 32-bit starts of records hold", nonzeros);
}

EncodedWeight encode_counted(const Tensor& w, std::span<const TileCounts> counts,
                             const RecordLayout& layout, ThreadPool& threads) {
  const int64_t rows = w.size(0);
  const int64_t columns = w.size(1);
  const RecordGrid grid = record_grid(rows, columns, layout);
  NewRecords made(layout_part(layout), grid.count());
  fill_starts(counts, layout, grid, record_grid(rows, columns, kTile).columns, made.starts.values);
  made.allocate_records();
  threads.parallel_for(grid.count(), kRecordsPerRange, [&](int64_t begin, int64_t end) {
    RecordElements elements;
    RecordContent content;
    for (int64_t r = begin; r < end; ++r) {
      copy_record(w, grid.row_block(r) * kRecordRows, grid.column(r) * layout.columns(),
                  layout.columns(), elements);
      const int32_t values = layout.pairs() ? fill_content<true>(layout, elements, content)
                                            : fill_content<false>(layout, elements, content);
      const size_t first = size_t{made.starts.values[static_cast<size_t>(r)]} * kRecordAlignment;
      const size_t last = size_t{made.starts.values[static_cast<size_t>(r + 1)]} * kRecordAlignment;
      write_record(layout, content, values, made.records.values.subspan(first, last - first));
    }
  });
  return made.finish({.format = std::string(kName),
                      .version = kRecordVersion,
                      .dtype = w.dtype(),
                      .rows = rows,
                      .columns = columns,
                      .nonzeros = nonzeros_of(counts),
                      .parts = {}});
}

}  // namespace

EncodedWeight encode_records(const Tensor& w, LayoutFor goal, ThreadPool& threads) {
  const std::vector<TileCounts> counts = count_tiles(w, threads);
  const int64_t nonzeros = nonzeros_of(counts);
  require_starts_reach_all(w, nonzeros, RecordsFor::speed);
  return encode_counted(w, counts, choose_layout(goal, counts, w.size(0), w.size(1), nonzeros),
                        threads);
}

EncodedWeight encode_records(const Tensor& w, RecordsFor goal, ThreadPool& threads) {
  const std::vector<TileCounts> counts = count_tiles(w, threads);
  const int64_t nonzeros = nonzeros_of(counts);
  require_starts_reach_all(w, nonzeros, goal);
  return encode_counted(w, counts, record_layout_for(w.element_count(), nonzeros, goal), threads);
}

}  // namespace sparsellm::tca_bme
