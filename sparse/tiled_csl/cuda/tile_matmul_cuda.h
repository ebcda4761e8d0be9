#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/cuda_product_operands.h"
#include "sparse/tiled_csl/cuda/tile_gemm_cuda.h"
#include "sparse/tiled_csl/cuda/tile_multistage_cuda.h"

namespace sparsellm {

// A matrix in the layout of tiled_csl version 2 (sparse/tiled_csl/format/tile_record.h), on the
// device.
struct TileMatrix {
  const uint8_t* records = nullptr;  // 16-byte aligned
  const uint32_t* starts = nullptr;  // [tiles + 1], in units of 16 bytes
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t largest_record = 0;         // bytes
  int multiprocessors = 0;            // of the device; 0 if it cannot run the kernels for 9.0
  TileMultistageDevice multistage{};  // likewise, of the kernel for 8.0 and above
};

// How many multiprocessors a device has, if the kernels for compute capability 9.0 run on it, else
// 0. Makes the device the current one.
int tile_matmul_multiprocessors(Device device);

// Who does what in a thread block.
struct TileMatmulConfig {
  int tiles = 8;  // at once
  // Warpgroups that multiply them, each by 64 tokens (tile_wgmma.cuh), 1 or 2; 0: each tile has a
  // warp that extracts and multiplies it, by 8, 16 or 32 tokens (tile_matmul.cuh).
  int groups = 0;
  // By the kernel for any compute capability from 8.0 on (tile_multistage_cuda.h), which has
  // nothing to choose.
  bool multistage = false;
  // By the kernel for 256 tokens at a time (tile_gemm_cuda.h), which has nothing to choose either.
  bool gemm = false;

  bool operator==(const TileMatmulConfig&) const = default;
};
std::string tile_matmul_name(const TileMatmulConfig& config);

// The product; the operands' workspace is that of tile_gemm_cuda(). The order of the sums depends
// on the matrix's shape, the configuration and the device, multistage also on the largest record,
// but not on the number of tokens, except by tile_gemm_cuda(): others are batch-invariant. A launch
// for as many tokens as the configuration takes at once, up to 32 without warpgroups; uses the
// queue's workspace and counters, allocates nothing and does not synchronise. With
// Launches::overlapping (PDL), records are read before what was enqueued before has ended. Throws
// Error for what does not fit.
void tile_matmul_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                      const TileMatmulConfig& config, const ExecContext& ctx);

// Whether the device, and the build, run the configuration for such a matrix and this many tokens:
// then also for fewer.
bool tile_matmul_fits(const TileMatrix& matrix, const TileMatmulConfig& config, int64_t tokens);
// The configuration that is expected to be the fastest for this many tokens. None if expansion is:
// for more than 1,024 tokens, or more than 64 where only the multistage kernel runs.
std::optional<TileMatmulConfig> tile_matmul_rule(const TileMatrix& matrix, int64_t tokens);
// Those that fit and are worth measuring for this many tokens, that one first. By warpgroups with
// x in registers up to 512, multistage up to 128.
std::vector<TileMatmulConfig> tile_matmul_candidates(const TileMatrix& matrix, int64_t tokens);
// The one for products whose bits do not depend on the number of tokens; none if the device cannot
// run the kernels.
std::optional<TileMatmulConfig> tile_matmul_for_any_tokens(const TileMatrix& matrix);

}  // namespace sparsellm
