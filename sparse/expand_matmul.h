#pragma once

#include <cstdint>
#include <vector>

#include "sparse/weight_matrix.h"

namespace sparsellm {

// A product on CUDA for many tokens, where a weight is not worth decoding more than once: pieces of
// its rows are expanded to dense ones and multiplied by gemm(), by turns on two streams: the
// expansion of one overlaps the product of the other, and two products fill a device that is too
// large for one. What
// WeightMatrix::matmul() and gemm() say of their arguments holds; x has the dtype of the weight.
// May be captured in a graph where gemm() may, and takes expand_matmul_workspace_bytes() from the
// workspace.
struct ExpandMatmul {
  const WeightMatrix& weight;
  int64_t piece_rows = 0;  // at most those that the workspace was sized for
  bool overlapped = true;  // false: one piece after the other on one stream, in less memory
};
void expand_matmul(const ExpandMatmul& how, const Tensor& x, Tensor y, const Epilogue& epilogue,
                   ExecContext& ctx);

// How many rows of a weight [out, in] of 16-bit values are expanded at once where nothing was
// measured: as many as fill the device with tiles of a product of this many tokens, in about 64 MiB
// or, of long rows, 2048 rows.
int64_t expand_piece_rows(int64_t out, int64_t in, int64_t tokens);
// The candidates for measurements, that number among them.
std::vector<int64_t> expand_piece_choices(int64_t out, int64_t in, int64_t tokens);

// With any of these numbers of rows.
int64_t expand_matmul_workspace_bytes(int64_t out, int64_t in);

// Pieces of at most 16 MiB, or of one row, that are not overlapped, and what a product then takes.
int64_t expand_single_piece_rows(int64_t out, int64_t in);
int64_t expand_single_piece_workspace_bytes(int64_t out, int64_t in);

}  // namespace sparsellm
