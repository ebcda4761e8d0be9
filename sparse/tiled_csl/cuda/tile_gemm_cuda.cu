#include <algorithm>

#include "kernels/base/cuda_context.h"
#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/device/tensor_map.h"
#include "sparse/tiled_csl/cuda/tile_gemm_cuda.h"
#include "sparse/tiled_csl/cuda/tile_gemm_kernels.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_parameters.cuh"
#include "sparse/tiled_csl/cuda/tile_room.cuh"

namespace sparsellm {
namespace {

using tiled_csl::ceil_div;
using tiled_csl::kGemmStages;
using tiled_csl::kGemmTokens;
using tiled_csl::kTileColumns;

constexpr int kDynamicBytes = tiled_csl::kSharedBytes - tiled_csl::kGemmStaticBytes;
static_assert(tiled_csl::kGemmStaticBytes <= tiled_csl::kTileAlignment);
constexpr int64_t kPartialBytes =  // of a block
    int64_t{tiled_csl::kTileRows} * kGemmTokens * int64_t{sizeof(float)};

// Puts the columns of x [tokens, columns] into the order of tile_record.h: to [tokens, 64 *
// row_tiles], zeros after the last column. A thread has 16 bytes of it.
__global__ void order_columns_kernel(const uint16_t* x, int64_t x_stride, int columns, int tokens,
                                     int row_tiles, uint4* to) {
  launch_dependents();
  wait_on_dependencies();
  constexpr int kParts = kTileColumns / 8;  // of a tile's columns
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t parts = int64_t{row_tiles} * kParts;
  if (at >= parts * tokens) {
    return;
  }
  const int part = static_cast<int>(at % parts);
  const int first = part / kParts * kTileColumns;
  const uint16_t* const from = x + at / parts * x_stride;
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = first + static_cast<int>(tiled_csl::column_at(part % kParts * 8 + 2 * i));
    const uint32_t low = column < columns ? from[column] : 0;
    const uint32_t high = column + 1 < columns ? from[column + 1] : 0;
    pairs[i] = low | high << 16;
  }
  to[at] = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Where records have a second piece, having it under way matters more than one more stage of x.
struct Room {
  int x_stages = 0;
  int slots = 0;
};
Room room_for(const TileMatrix& matrix) {
  const bool one_piece = matrix.largest_record <= tiled_csl::kPieceBytes;
  const int x_stages = one_piece ? kGemmStages : tiled_csl::kGemmLeastXStages;
  const int64_t bytes =
      tiled_csl::kTileBytes + ceil_div(x_stages * tiled_csl::kGemmTokenBytes, kGemmStages);
  return {.x_stages = x_stages,
          .slots = tiled_csl::slots_for(matrix.largest_record, kGemmStages, bytes)};
}
int64_t blocks_for(const TileMatrix& matrix) {
  const int64_t tiles = tiled_csl::tile_grid(matrix.rows, matrix.columns).count();
  return std::min({tiles, int64_t{matrix.multiprocessors}, CudaQueue::kCounters});
}

}  // namespace

bool tile_gemm_fits(const TileMatrix& matrix) {
  return matrix.multiprocessors > 0 && tiled_csl::tile_gemm_kernel_for(DType::f16) != nullptr &&
         room_for(matrix).slots > 0 &&
         tiled_csl::countable(matrix.rows, matrix.columns, kTileGemmMostTokens / kGemmTokens) &&
         blocks_for(matrix) * kPartialBytes <= CudaContext::kWorkspaceBytes;
}

void tile_gemm_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                    const ExecContext& ctx) {
  require(tile_gemm_fits(matrix),
          "no tiled_csl kernel for many tokens with a {} x {} matrix on {} multiprocessors",
          matrix.rows, matrix.columns, matrix.multiprocessors);
  require(operands.workspace != nullptr, "a tiled_csl kernel without its workspace of {} bytes",
          tile_gemm_workspace_bytes(matrix.columns, operands.tokens));
  const tiled_csl::TileGrid grid = tiled_csl::tile_grid(matrix.rows, matrix.columns);
  if (grid.count() == 0) {
    return;
  }
  const CudaQueue& queue = cuda_queue(ctx);
  const int64_t blocks = blocks_for(matrix);
  const Room room = room_for(matrix);
  const tiled_csl::GemmKernel kernel = tiled_csl::tile_gemm_kernel_for(operands.dtype);
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamicBytes));
  for (int64_t first = 0; first < operands.tokens; first += kTileGemmMostTokens) {
    const int64_t tokens = std::min(operands.tokens - first, kTileGemmMostTokens);
    const int64_t token_tiles = ceil_div(tokens, kGemmTokens);
    const int64_t steps = grid.count() * token_tiles;
    constexpr int64_t kOrderThreads = 256;
    const int64_t parts = grid.columns * (kTileColumns / 8) * tokens;
    launch(ctx, &order_columns_kernel,
           {.blocks = static_cast<unsigned>(ceil_div(parts, kOrderThreads)),
            .threads = kOrderThreads,
            .pdl = true},
           static_cast<const uint16_t*>(operands.x) + first * operands.x_stride, operands.x_stride,
           static_cast<int>(matrix.columns), static_cast<int>(tokens),
           static_cast<int>(grid.columns), static_cast<uint4*>(operands.workspace));
    const CUtensorMap x = map_rows({.data = operands.workspace,
                                    .rows = tokens,
                                    .columns = grid.columns * kTileColumns,
                                    .stride = grid.columns * kTileColumns},
                                   kGemmTokens);
    tiled_csl::GemmParameters p{
        .tile = tiled_csl::tile_parameters(matrix, operands, first, tokens, steps, blocks, queue),
        .token_tiles = static_cast<int>(token_tiles),
        .x_stages = room.x_stages};
    p.tile.slots = room.slots;
    p.tile.slot_bytes = tiled_csl::slot_bytes_for(matrix.largest_record);
    launch(ctx, kernel,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = tiled_csl::kGemmThreads,
            .shared_bytes = kDynamicBytes,
            .pdl = true},
           p, x);
  }
}

}  // namespace sparsellm
