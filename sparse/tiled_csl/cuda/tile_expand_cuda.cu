#include <algorithm>

#include "kernels/base/launch.cuh"
#include "kernels/base/warp.cuh"
#include "sparse/dense_rows.cuh"
#include "sparse/tiled_csl/cuda/tile_expand_cuda.h"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_multistage.cuh"
#include "sparse/tiled_csl/cuda/tile_room.cuh"

namespace sparsellm {
namespace {

using namespace tiled_csl;

constexpr int kLanesOfRow = kTileColumns / kLaneElements;
constexpr int kRowsAtOnce = kWarp / kLanesOfRow;

struct Parameters {
  TileParameters tiles;
  int first_tile;
  DenseRows rows;
};

// Writes a tile, the first element of which is that of `row` and `column` of the matrix. Eight
// columns of a row are words of four chunks (tile_record.h); the lanes of a warp read a word of
// each bank.
__device__ void store_tile(const Parameters& p, uint32_t tile, int64_t row, int64_t column,
                           int lane) {
  const int part = lane % kLanesOfRow;
#pragma unroll 4
  for (int i = 0; i < kTileRows; i += kRowsAtOnce) {
    const int r = i + lane / kLanesOfRow;
    const uint32_t words = tile + r * (kTileColumns * 2) + part / 2 * 4;
    uint32_t v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = load_shared32(words + (((part % 2 * 4 + k) ^ r % 8) << 4));
    }
    store_eight(p.rows, row + r, column + part * kLaneElements, uint4{v[0], v[1], v[2], v[3]});
  }
}

// Blocks of one warp, small enough to find room beside those of a product on another stream, each
// with an equal share of the tiles, which it extracts in shared memory as a product does.
__global__ void __launch_bounds__(kWarp) tile_expand_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = computed_once(threadIdx.x);
  const uint32_t tile = shared_address(shared);
  const int block = static_cast<int>(blockIdx.x);
  TileCursor cursor({p.first_tile + first_tile_of(p.tiles, block),
                     p.first_tile + first_tile_of(p.tiles, block + 1)},
                    p.tiles.row_tiles, 0, 1);
  StagedPieces pieces(p.tiles, cursor, tile + kTileBytes, lane);
  TileExtractor<1, true> extractor(tile, lane);
  extractor.clear_tile();
  __syncwarp();
  while (!cursor.done()) {
    const bool kept = extract_record(
        extractor, pieces, [] { __syncwarp(); }, [] {});
    store_tile(p, tile, int64_t{cursor.row_begin() / p.tiles.row_tiles} * kTileRows,
               int64_t{cursor.column()} * kTileColumns, lane);
    cursor.advance();
    __syncwarp();
    if (kept) {
      extractor.clear_places();
    } else {
      extractor.clear_tile();
    }
    __syncwarp();
  }
}

}  // namespace

void tile_expand_cuda(const TileMatrix& matrix, Range rows, void* dense, const ExecContext& ctx) {
  const TileGrid grid = tile_grid(matrix.rows, matrix.columns);
  if (rows.count == 0 || grid.columns == 0) {
    return;
  }
  const int64_t first_row = rows.begin / kTileRows;
  const int64_t end_row = ceil_div(rows.begin + rows.count, kTileRows);
  const int64_t tiles = (end_row - first_row) * grid.columns;
  require(grid.count() <= INT32_MAX / 2, "expand: {} tiles of a {} x {} matrix", grid.count(),
          matrix.rows, matrix.columns);
  // One piece: what follows it is copied while the tile is written.
  const int slot_bytes = slot_bytes_for(matrix.largest_record);
  const size_t shared_bytes = kTileBytes + static_cast<size_t>(slot_bytes);
  int of_multiprocessor = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_multiprocessor, tile_expand_kernel,
                                                           kWarp, shared_bytes));
  const int64_t blocks =
      std::min(tiles, int64_t{std::max(of_multiprocessor, 1)} *
                          std::max(matrix.multiprocessors, matrix.multistage.multiprocessors));
  launch(ctx, tile_expand_kernel,
         {.blocks = static_cast<unsigned>(std::max<int64_t>(blocks, 1)),
          .threads = kWarp,
          .shared_bytes = shared_bytes},
         Parameters{.tiles = {.records = matrix.records,
                              .starts = matrix.starts,
                              .row_tiles = static_cast<int>(grid.columns),
                              .share = static_cast<int>(tiles / std::max<int64_t>(blocks, 1)),
                              .longer = static_cast<int>(tiles % std::max<int64_t>(blocks, 1)),
                              .slots = 1,
                              .slot_bytes = slot_bytes},
                    .first_tile = static_cast<int>(first_row * grid.columns),
                    .rows = dense_rows(dense, rows.begin, rows.count, matrix.columns)});
}

}  // namespace sparsellm
