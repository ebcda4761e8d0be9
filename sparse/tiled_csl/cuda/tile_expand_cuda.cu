#include <algorithm>

#include "kernels/base/launch.cuh"
#include "sparse/tiled_csl/cuda/tile_expand_cuda.h"
#include "sparse/tiled_csl/format/tile_record.h"

namespace sparsellm {
namespace {

using namespace tiled_csl;

constexpr int kThreads = 128;

struct Parameters {
  const uint8_t* records;
  const uint32_t* starts;
  uint16_t* dense;
  int64_t first_tile;
  int64_t row_tiles;
  int64_t begin_row;
  int64_t end_row;
  int64_t columns;
};

// A block for each tile: it stores the nonzeros in shared memory as the product does, and then
// copies the rows to where they belong, in the order of the columns.
__global__ void __launch_bounds__(kThreads) tile_expand_kernel(Parameters p) {
  __shared__ uint16_t tile[kTileElements];
  const int64_t index = p.first_tile + blockIdx.x;
  for (int i = threadIdx.x; i < kTileElements / 2; i += kThreads) {
    reinterpret_cast<uint32_t*>(tile)[i] = 0;
  }
  __syncthreads();
  const uint8_t* piece = p.records + int64_t{p.starts[index]} * kRecordAlignment;
  for (bool last = false; !last; piece += kPieceBytes) {
    const auto header = *reinterpret_cast<const uint32_t*>(piece);
    const int groups = static_cast<int>(header & 0xff);
    const bool hosts = (header >> 8 & kHasHosts) != 0;
    const int words = static_cast<int>(header >> 16);
    last = (header >> 8 & kLastPiece) != 0;
    const uint8_t* const first_word = piece + kPieceHeader + (hosts ? kWarp : 0);
    for (int i = threadIdx.x; i < words; i += kThreads) {
      const uint32_t word = reinterpret_cast<const uint32_t*>(first_word)[i];
      tile[(word >> 16) / 2] = static_cast<uint16_t>(word);
    }
    const auto* const values = reinterpret_cast<const uint16_t*>(piece + head_bytes(hosts, words));
    const auto* const locations =
        reinterpret_cast<const uint8_t*>(values) + groups * kGroupValueBytes;
    for (int i = threadIdx.x; i < groups * kWarp * kSlots; i += kThreads) {
      const uint32_t lane = i / kSlots % kWarp;
      const uint32_t slot = i % kSlots;
      const uint32_t host =
          hosts && i < kWarp * kSlots ? piece[kPieceHeader + lane] : lane * kSlots;
      const uint32_t bank = slot >= host % kSlots ? host / kSlots : lane;
      if (values[i] != 0) {
        tile[location_in(bank, locations[i])] = values[i];
      }
    }
  }
  __syncthreads();
  const int64_t first_row = index / p.row_tiles * kTileRows;
  const int64_t first_column = index % p.row_tiles * kTileColumns;
  const uint32_t column = threadIdx.x % kTileColumns;
  if (first_column + column >= p.columns) {
    return;
  }
  for (int64_t row = first_row + threadIdx.x / kTileColumns;
       row < min(first_row + kTileRows, p.end_row); row += kThreads / kTileColumns) {
    if (row >= p.begin_row) {
      p.dense[(row - p.begin_row) * p.columns + first_column + column] =
          tile[swizzled(static_cast<uint32_t>(row - first_row), record_position(column))];
    }
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
  require(tiles <= INT32_MAX, "expand: {} tiles of a {} x {} matrix", tiles, matrix.rows,
          matrix.columns);
  launch(ctx, tile_expand_kernel, {.blocks = static_cast<unsigned>(tiles), .threads = kThreads},
         Parameters{.records = matrix.records,
                    .starts = matrix.starts,
                    .dense = static_cast<uint16_t*>(dense),
                    .first_tile = first_row * grid.columns,
                    .row_tiles = grid.columns,
                    .begin_row = rows.begin,
                    .end_row = rows.begin + rows.count,
                    .columns = matrix.columns});
}

}  // namespace sparsellm
