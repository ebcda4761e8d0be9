#pragma once

#include <cstdint>
#include <vector>

#include "sparse/tca_bme/cuda/record_matmul_cuda.h"

// How the products of record_matmul_cuda() can be cut up, as far as that follows from shapes.
namespace sparsellm::tca_bme {

inline constexpr int kTokenTile = 64;     // of one launch
inline constexpr int kTileBytes = 2048;   // partial sums of a row block for 8 tokens
inline constexpr int kMaxClusters = 160;  // of a launch

// Tiles of 8 tokens, of a launch for this many; the kernels are for powers of two.
int token_tiles_for(int64_t tokens);
int max_warps(int token_tiles);

// What a kernel of record_matmul_cuda() computes in a launch.
struct TokenTile {
  int tiles = 1;       // of 8 tokens
  bool bytes = false;  // in integers (RecordMatmulConfig::bytes)
  bool half = false;   // of 4 tokens, in integers

  int x_rows() const { return half ? 4 : 8 * tiles; }                           // in shared memory
  int sum_bytes() const { return half ? kTileBytes / 2 : tiles * kTileBytes; }  // of a row block
};
int max_warps(const TokenTile& tile);
TokenTile token_tile_for(const RecordMatmulConfig& config, int64_t tokens);
// Tokens of one launch.
int64_t launch_tokens(const RecordMatmulConfig& config);
// Bytes after each row of x in shared memory, at most.
int x_padding(const RecordMatrix& matrix);
// Bytes that x of this many record columns takes of shared memory.
int64_t x_bytes(const RecordMatrix& matrix, const TokenTile& tile, int64_t columns);

int row_blocks_of(const RecordMatrix& matrix);
int clusters_of(const RecordMatrix& matrix, int split);
// Row blocks that a cluster gets at most: if they are shared evenly, and if they are not.
int even_blocks(int row_blocks, int clusters);
int max_blocks(int row_blocks, int clusters);

struct RecordChoice {
  RecordMatmulConfig config;
  int64_t reduction_bytes = 0;      // of all blocks, if the row blocks are shared evenly,
  int64_t max_reduction_bytes = 0;  // and however they are
  bool crowded = false;  // more passes than x alone needs, for records that need the room
};

// What can be tried for a shape, whatever is in its records: x gets half of the shared memory, and
// reduction buffers that would take too much memory are left out where there are smaller ones. A
// choice with more passes follows that with fewer.
std::vector<RecordChoice> record_choices(const RecordMatrix& matrix, int token_tiles);

}  // namespace sparsellm::tca_bme
