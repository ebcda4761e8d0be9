#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/cuda_product_operands.h"

namespace sparsellm {

// A matrix in the layout of tiled_csl version 2 (sparse/tiled_csl/format/tile_record.h), on the
// device.
struct TileMatrix {
  const uint8_t* records = nullptr;  // 16-byte aligned
  const uint32_t* starts = nullptr;  // [tiles + 1], in units of 16 bytes
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t largest_record = 0;  // bytes
  int multiprocessors = 0;     // of the device; 0 if it cannot run these kernels
};

// How many multiprocessors a device has, if these kernels run on it: they take compute
// capability 9.0. Makes the device the current one.
int tile_matmul_multiprocessors(Device device);

// Who does what in a thread block.
struct TileMatmulConfig {
  int warps = 8;  // that extract tiles
  // Warpgroups that multiply, each by 64 tokens (tile_wgmma.cuh); 0: each warp multiplies the tiles
  // that it has extracted, by 8, 16 or 32 tokens (tile_matmul.cuh).
  int groups = 0;

  bool operator==(const TileMatmulConfig&) const = default;
};
std::string tile_matmul_name(const TileMatmulConfig& config);

// The product; the operands' workspace is not used. The order of the sums depends on the matrix's
// shape and the configuration only, not on the number of tokens: a configuration is
// batch-invariant. A launch for as many tokens as the configuration takes at once, up to 32 without
// warpgroups; uses the queue's workspace and counters, allocates nothing and does not synchronise.
// With Launches::overlapping (PDL), records are read before what was enqueued before has ended.
// Throws Error for what the device does not run.
void tile_matmul_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                      const TileMatmulConfig& config, const ExecContext& ctx);

// The configuration that is expected to be the fastest for this many tokens; none if the device
// cannot run the kernels.
std::optional<TileMatmulConfig> tile_matmul_rule(const TileMatrix& matrix, int64_t tokens);
// The one for products whose bits do not depend on the number of tokens.
TileMatmulConfig tile_matmul_for_any_tokens();

}  // namespace sparsellm
