#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"

// What products with records take from the workspace on a CUDA device, by shapes, and by how many
// thread blocks it holds at once. In every build: what a model takes on a GPU can be asked without
// one.
namespace sparsellm {

// Of any of the candidates of record_matmul_cuda(), for this many tokens or fewer.
int64_t record_matmul_workspace_bytes(const RecordMatrix& matrix, int64_t tokens);

// Of a GPU of compute capability 9.0 with this many multiprocessors.
ClusterCounts assumed_clusters(int multiprocessors);

namespace tca_bme {

// Under Sums::fastest record_matmul_cuda() is not used for more tokens.
inline constexpr int64_t kMaxDecodedTokens = 128;
// From here on warpgroups may be worth their smallest tile.
inline constexpr int64_t kMinWgmmaTokens = 17;
// Pieces of an expanded weight that overlap take more memory than all else in a step of few tokens.
// Up to here warpgroups do without, for values of 16 bits.
inline constexpr int64_t kMaxWgmmaOnlyTokens = 1024;

// The tokens of a tile of warpgroups, and the consumer warpgroups of a block: as many as there are
// registers for. Five of 80 registers were no faster than four.
inline constexpr int kWgmmaTiles[] = {32, 64, 128, 256};
constexpr int consumers_for(int token_tile) {
  return token_tile <= 64 ? 4 : token_tile == 128 ? 3 : 2;
}
// The partial sums of clusters with Stream-K.
int64_t stream_k_bytes(int token_tile, int64_t clusters);

// Whether pieces of an expanded weight overlap in products of up to `max_tokens` tokens.
bool overlaps_pieces(const RecordMatrix& matrix, int64_t max_tokens);

// The most that any plan of a weight needs. It does not depend on the bytes of the records.
int64_t records_workspace_bytes(const RecordMatrix& matrix, int64_t tokens, Sums sums);

}  // namespace tca_bme

}  // namespace sparsellm
