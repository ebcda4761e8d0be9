#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparse/tca_bme/cuda/record_matmul_cuda.h"

namespace sparsellm {

// How a product by warpgroups (wgmma) is cut up.
struct RecordWgmmaConfig {
  int tile = 64;       // tokens: 32, 64 or 128; of i8 also 16, of 16 bits 256
  int split = 1;       // thread blocks of a cluster, which share K (split-K): 1, 2, 4, 8 or 16
  int row_blocks = 1;  // that a thread block computes at a time
  // Whether clusters get equal shares of the matrix, which begin and end in the middle of row
  // blocks, and a second kernel adds the partial sums of those that share one (Stream-K).
  bool stream_k = false;

  bool operator==(const RecordWgmmaConfig&) const = default;
};
std::string record_wgmma_name(const RecordWgmmaConfig& config);

// record_matmul_cuda() for many tokens, by the products of warpgroups that compute capability 9.0
// has: each weight is decoded once for `tile` tokens, and any number of them is one launch or a few
// equal ones. Allocates nothing and does not synchronise. The order of the sums depends on the
// shape and the layout of the matrix and the configuration, and with Stream-K on the device, not on
// the number of tokens: a configuration is batch-invariant. No tokens and no rows are nothing to
// do. Throws Error for what record_wgmma_takes() or record_wgmma_fits() refuses.
void record_wgmma_cuda(const RecordMatrix& matrix, const CudaProductOperands& operands,
                       const RecordWgmmaConfig& config, const ExecContext& ctx);

// Whether the rows of x are aligned to 16 bytes; of narrow values, any x. Columns of a width that
// is not a multiple of that are taken where the stride is.
bool record_wgmma_takes(const RecordMatrix& matrix, const CudaProductOperands& operands);

// Whether x becomes integers of 16 bits, as with RecordMatmulConfig::bytes.
bool record_wgmma_rounds_x(const RecordMatrix& matrix, const RecordWgmmaConfig& config);

// Whether there is room for the records of the matrix, by the largest of them.
bool record_wgmma_fits(const RecordMatrix& matrix, const RecordWgmmaConfig& config);

int64_t record_wgmma_workspace_bytes(const RecordMatrix& matrix, const RecordWgmmaConfig& config,
                                     int64_t tokens);

// The configurations that may be the fastest for this many tokens, the best guess first; none if
// the device, by the clusters that the matrix names, or the build cannot run the kernel, and for a
// matrix without rows. They fit the matrix, and each is possible for any number of tokens.
std::vector<RecordWgmmaConfig> record_wgmma_candidates(const RecordMatrix& matrix, int64_t tokens);

}  // namespace sparsellm
