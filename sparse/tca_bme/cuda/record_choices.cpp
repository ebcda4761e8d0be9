#include "sparse/tca_bme/cuda/record_choices.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

int token_tiles_for(int64_t tokens) {
  const int64_t tiles = ceil_div(std::min<int64_t>(tokens, kTokenTile), 8);
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(tiles)));
}
int max_warps(int token_tiles) { return token_tiles <= 2 ? 16 : token_tiles == 4 ? 12 : 8; }

int max_warps(const TokenTile& tile) {
  // Integers and the totals of 16 tokens take twice the registers of as many sums.
  constexpr int kManyTiles = 4;
  return max_warps(tile.bytes && tile.tiles > 1 ? kManyTiles : tile.tiles);
}

TokenTile token_tile_for(const RecordMatmulConfig& config, int64_t tokens) {
  constexpr int64_t kHalfTile = 4;
  return {.tiles = token_tiles_for(tokens),
          .bytes = config.bytes,
          .half = config.bytes && tokens <= kHalfTile};
}

int64_t launch_tokens(const RecordMatmulConfig& config) {
  return config.bytes ? kMaxByteTokens : kTokenTile;
}

int x_padding(const RecordMatrix& matrix) { return matrix.narrow() ? 32 : 16; }

int64_t x_bytes(const RecordMatrix& matrix, const TokenTile& tile, int64_t columns) {
  constexpr int64_t kBlockBytes = 1024;  // of x that has one scale
  const int64_t row = columns * matrix.chunks * kChunkColumns * 2 + x_padding(matrix);
  const int64_t scales = tile.bytes ? ceil_div(row, kBlockBytes) * int64_t{sizeof(float)} : 0;
  return tile.x_rows() * (row + scales);
}

int row_blocks_of(const RecordMatrix& matrix) {
  return static_cast<int>(ceil_div(matrix.rows, kRecordRows));
}
int clusters_of(const RecordMatrix& matrix, int split) {
  return std::min({matrix.clusters_of(split), row_blocks_of(matrix), kMaxClusters});
}
int even_blocks(int row_blocks, int clusters) {
  return static_cast<int>(ceil_div(row_blocks, clusters));
}
int max_blocks(int row_blocks, int clusters) {
  const int even = even_blocks(row_blocks, clusters);
  return even + (even + 3) / 4;
}

std::vector<RecordChoice> record_choices(const RecordMatrix& matrix, int token_tiles) {
  constexpr int64_t kMaxXBytes = 116 * 1024;
  constexpr int64_t kMaxReductionBytes = int64_t{64} << 20;
  const int row_blocks = row_blocks_of(matrix);
  const int64_t record_columns = ceil_div(matrix.columns, matrix.chunks * kChunkColumns);
  std::vector<RecordChoice> all;
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const int warps : {8, 12, 16}) {
    // With the sums of one tile 16 warps have registers enough; 12 are not tried.
    if (warps > max_warps(token_tiles) || (warps == 12 && token_tiles == 1)) {
      continue;
    }
    for (int split = 1; split <= 16; split *= 2) {
      const int clusters = clusters_of(matrix, split);
      int64_t passes = 1;
      while (ceil_div(record_columns, split * passes) * matrix.chunks * kChunkColumns * 16 *
                 token_tiles >
             kMaxXBytes) {
        passes *= 2;
      }
      if (clusters == 0 || split * passes > record_columns) {
        continue;
      }
      const auto bytes_for = [&](int blocks) {
        return (blocks + warps - 1) * int64_t{token_tiles} * kTileBytes * clusters * split;
      };
      const int64_t bytes = bytes_for(even_blocks(row_blocks, clusters));
      const int64_t max_bytes = bytes_for(max_blocks(row_blocks, clusters));
      smallest = std::min(smallest, passes * bytes);
      for (const int stages : {2, 0}) {
        for (int64_t some = passes; some <= 4 * passes && split * some <= record_columns;
             some *= 2) {
          all.push_back({.config = {.split = split,
                                    .warps = warps,
                                    .passes = static_cast<int>(some),
                                    .stages = stages},
                         .reduction_bytes = some * bytes,
                         .max_reduction_bytes = some * max_bytes,
                         .crowded = some != passes});
        }
      }
    }
  }
  std::erase_if(all, [&](const RecordChoice& choice) {
    return choice.reduction_bytes > std::max(kMaxReductionBytes, smallest);
  });
  return all;
}

}  // namespace sparsellm::tca_bme
