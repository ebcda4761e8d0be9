#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/base/launch.cuh"
#include "sparse/general_sparse/cuda/expand_cuda.h"
#include "sparse/general_sparse/cuda/expand_kernel.cuh"

namespace sparsellm::general_sparse {
namespace {

// Every device lets a block have so much.
constexpr int64_t kMostTileBytes = 96 << 10;

int64_t tile_bytes(const ExpandParameters& p) {
  return int64_t{p.block_groups} * p.shared_rows * p.tile_columns * int64_t{sizeof(uint16_t)};
}

// Parts of a few units, where the position before a part is known.
int parts_of(const DeviceEncoding& e, const ChunkGrid& grid) {
  constexpr int64_t kFewUnits = 4;
  if (e.layout.positions == PositionCode::bits ||
      (has_differences(e.layout.positions) && e.border_positions.bytes() == 0)) {
    return 1;
  }
  const int64_t parts = e.units / std::max<int64_t>(grid.slices(), 1) / kFewUnits;
  return static_cast<int>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(parts, 1, kMostExpandWarps))));
}

template <bool kTile>
auto kernel_for(PositionCode code) {
  switch (code) {
    case PositionCode::u8:
      return expand_kernel<PositionCode::u8, kTile>;
    case PositionCode::i8:
      return expand_kernel<PositionCode::i8, kTile>;
    case PositionCode::u16:
      return expand_kernel<PositionCode::u16, kTile>;
    case PositionCode::u32:
      return expand_kernel<PositionCode::u32, kTile>;
    case PositionCode::bits:
      break;
  }
  return expand_kernel<PositionCode::bits, kTile>;
}

}  // namespace

void expand_cuda(const DeviceEncoding& e, Range rows, void* dense, const ExecContext& ctx) {
  require(size_of(e.dtype) == sizeof(uint16_t), "general_sparse: {} is not expanded on CUDA",
          name_of(e.dtype));
  const int64_t bytes = rows.count * e.columns * size_of(e.dtype);
  if (bytes == 0) {
    return;
  }
  constexpr int64_t kVector = sizeof(uint4) / sizeof(uint16_t);
  const ChunkGrid grid(e.layout, e.rows, e.columns);
  const int64_t last_columns = e.columns - (grid.panels() - 1) * grid.panel_columns();
  const int64_t first_window = rows.begin / e.layout.window_rows;
  const int64_t windows = ceil_div(rows.begin + rows.count, e.layout.window_rows) - first_window;
  const int64_t widest = std::min(grid.panel_columns(), e.columns);
  ExpandParameters p{
      .starts = static_cast<const uint32_t*>(e.starts.data()),
      .row_order = static_cast<const uint16_t*>(e.row_order.data()),
      .positions = e.positions.data(),
      .values = static_cast<const uint16_t*>(e.values.data()),
      .border_positions = static_cast<const uint16_t*>(e.border_positions.data()),
      .dense = static_cast<uint16_t*>(dense),
      .first_row = rows.begin,
      .end_row = rows.begin + rows.count,
      .columns = e.columns,
      .groups = grid.groups(),
      .panel_columns = grid.panel_columns(),
      .first_window = first_window,
      .panels = static_cast<int>(grid.panels()),
      .window_groups = static_cast<int>(grid.window_groups()),
      .last_panel_words = static_cast<int>(ceil_div(last_columns, ChunkGrid::kWordBits)),
      .shared_rows = e.layout.shared_rows,
      .interleave = e.layout.interleave,
      .vector_shift = std::countr_zero(static_cast<unsigned>(e.layout.vector)),
      .block_groups = e.layout.interleave == 1 ? 1 : kExpandWarp / e.layout.vector,
      .group_lanes = e.layout.interleave == 1 ? kExpandWarp : e.layout.vector,
      .window_blocks = 0,
      .tile_columns = static_cast<int>(ceil_div(widest, kVector) * kVector),
      .in_vectors =
          e.columns % kVector == 0 && reinterpret_cast<uintptr_t>(dense) % sizeof(uint4) == 0};
  while (p.block_groups > 1 && tile_bytes(p) > kMostTileBytes) {
    p.block_groups /= 2;
    p.group_lanes *= 2;
  }
  p.window_blocks = p.window_groups / p.block_groups;
  const bool has_tile = tile_bytes(p) <= kMostTileBytes;
  const auto kernel =
      has_tile ? kernel_for<true>(e.layout.positions) : kernel_for<false>(e.layout.positions);
  if (has_tile) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kMostTileBytes)));
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  } else {
    check_cuda(cudaMemsetAsync(dense, 0, static_cast<size_t>(bytes), cuda_queue(ctx).stream));
  }
  const int64_t blocks = windows * grid.panels() * p.window_blocks;
  launch(ctx, kernel,
         {.blocks = static_cast<unsigned>(blocks),
          .threads = static_cast<unsigned>(kExpandWarp * parts_of(e, grid)),
          .shared_bytes = has_tile ? static_cast<size_t>(tile_bytes(p)) : 0},
         p);
}

}  // namespace sparsellm::general_sparse
