#include "sparse/tca_bme/cuda/record_workspace.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/token_buckets.h"
#include "kernels/base/workspace.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_choices.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"
#include "sparse/tca_bme/quantized/cuda/x_units.h"

namespace sparsellm {
namespace {

constexpr int64_t kAlignedColumns = 8;  // 16 bytes

// In a build or on a device without warpgroups there are no clusters.
bool has_warpgroups(const RecordMatrix& matrix) {
  return matrix.clusters.front() > 0 && matrix.rows > 0;
}
bool has_halves_by_warpgroups(const RecordMatrix& matrix) {
  return has_warpgroups(matrix) && !matrix.narrow();
}

}  // namespace

int64_t record_matmul_workspace_bytes(const RecordMatrix& matrix, int64_t tokens) {
  int64_t bytes = 0;
  for (int tiles = 1; tiles <= tca_bme::token_tiles_for(tokens); tiles *= 2) {
    for (const int chosen_for : {tiles, tca_bme::kTokenTile / 8}) {
      for (const tca_bme::RecordChoice& choice : tca_bme::record_choices(matrix, chosen_for)) {
        bytes = std::max(bytes, choice.max_reduction_bytes / chosen_for * tiles);
      }
    }
  }
  return bytes;
}

ClusterCounts assumed_clusters(int multiprocessors) {
  ClusterCounts counts{};
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = multiprocessors >> i;
  }
  return counts;
}

namespace tca_bme {

int64_t stream_k_bytes(int token_tile, int64_t clusters) {
  constexpr int64_t kOfCluster = 2;
  return clusters * kOfCluster * consumers_for(token_tile) * kRecordRows * token_tile *
         int64_t{sizeof(float)};
}

bool overlaps_pieces(const RecordMatrix& matrix, int64_t max_tokens) {
  return max_tokens > kMaxWgmmaOnlyTokens || matrix.columns % kAlignedColumns != 0 ||
         !has_halves_by_warpgroups(matrix);
}

int64_t records_workspace_bytes(const RecordMatrix& matrix, int64_t tokens, Sums sums) {
  int64_t bytes = expand_single_piece_workspace_bytes(matrix.rows, matrix.columns);
  if (overlaps_pieces(matrix, tokens)) {
    bytes = std::max(bytes, expand_matmul_workspace_bytes(matrix.rows, matrix.columns));
  }
  const auto add = [&](int64_t scratch) {
    bytes = std::max(bytes, Workspace::tensor_bytes(DType::f32, {ceil_div(scratch, 4)}));
  };
  if (sums == Sums::batch_invariant || tokens <= kMaxDecodedTokens) {
    add(record_matmul_workspace_bytes(matrix, tokens));
  }
  if (sums != Sums::batch_invariant && matrix.narrow() && has_warpgroups(matrix) &&
      tokens <= kMaxUnitTokens) {
    static_assert(token_bucket(kMaxUnitTokens) == kMaxUnitTokens);
    if (tokens >= kMinWgmmaTokens) {
      add(x_units_bytes(tokens, matrix.columns));
    }
    if (tokens >= kMinPlaneTokens && matrix.elements == RecordElements::i8) {
      for (const int tile : kByteWgmmaTiles) {
        add(x_planes_for(tokens, matrix.columns, tile).bytes());
      }
    }
  }
  // Stream-K is for products of one tile of tokens.
  if (sums != Sums::batch_invariant && tokens >= kMinWgmmaTokens &&
      has_halves_by_warpgroups(matrix) && tokens <= *std::rbegin(kWgmmaTiles)) {
    const int tile = *std::ranges::lower_bound(kWgmmaTiles, tokens);
    add(stream_k_bytes(tile, matrix.clusters.front()));
  }
  return bytes;
}

}  // namespace tca_bme

}  // namespace sparsellm
