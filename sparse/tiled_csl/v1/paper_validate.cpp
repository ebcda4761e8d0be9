#include "kernels/base/error.h"
#include "sparse/tiled_csl/format/location_set.h"
#include "sparse/tiled_csl/v1/paper_parts.h"

namespace sparsellm::tiled_csl {
namespace {

// A tile's place in its matrix.
struct PaperTile {
  int64_t index = 0;
  int64_t rows = 0;  // of the matrix, from the tile's first on
  int64_t columns = 0;
};

// Returns how many nonzeros the tile has.
int64_t validate_tile(const PaperTile& tile, std::span<const uint32_t> words) {
  const std::span<const uint32_t> nonzeros = without_padding(words);
  LocationSet locations;
  for (const uint32_t word : nonzeros) {
    const uint32_t location = location_of_word(word);
    require(is_nonzero(value_bits_of(word)), "tile {}: a zero among the nonzeros", tile.index);
    require(location < kTileElements, "tile {}: location {} of {}", tile.index, location,
            kTileElements);
    require(row_of(location) < tile.rows && column_of(location) < tile.columns,
            "tile {}: row {}, column {} is outside of the matrix", tile.index, row_of(location),
            column_of(location));
    require(locations.insert(location), "tile {}: two values at location {}", tile.index, location);
  }
  require(std::ssize(words) == aligned_words(std::ssize(nonzeros)),
          "tile {}: {} words for {} nonzeros", tile.index, words.size(), nonzeros.size());
  for (const uint32_t word : words.subspan(nonzeros.size())) {
    require(word == make_word(0, locations.lowest_missing()), "tile {}: {:#010x} fills it up",
            tile.index, word);
  }
  return std::ssize(nonzeros);
}

}  // namespace

void validate_paper(const EncodedWeight& e) {
  const TileGrid grid = tile_grid(e.rows, e.columns);
  require_parts(e, {{kTileOffsets, DType::u32, grid.count() + 1},
                    {kWords, DType::u32, e.part(kWords).count()}});
  const auto offsets = e.part(kTileOffsets).values<uint32_t>();
  const auto words = e.part(kWords).values<uint32_t>();
  require(offsets.front() == 0 && offsets.back() == words.size(),
          "{}: tiles from word {} to {} of {}", e.format, offsets.front(), offsets.back(),
          words.size());
  int64_t nonzeros = 0;
  for (int64_t tile = 0; tile < grid.count(); ++tile) {
    const uint32_t begin = offsets[static_cast<size_t>(tile)];
    const uint32_t end = offsets[static_cast<size_t>(tile) + 1];
    require(begin <= end && end <= words.size() && end - begin <= kTileElements,
            "tile {}: words {} to {} of {}", tile, begin, end, words.size());
    nonzeros += validate_tile({.index = tile,
                               .rows = e.rows - tile / grid.columns * kTileRows,
                               .columns = e.columns - tile % grid.columns * kTileColumns},
                              words.subspan(begin, end - begin));
  }
  require(nonzeros == e.nonzeros, "{}: {} nonzeros, but {} words that are not padding", e.format,
          e.nonzeros, nonzeros);
}

}  // namespace sparsellm::tiled_csl
