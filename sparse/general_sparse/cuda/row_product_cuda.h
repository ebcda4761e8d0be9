#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/general_sparse/cuda/dense_operands.h"
#include "sparse/general_sparse/cuda/row_matrix.h"
#include "sparse/general_sparse/cuda/row_pieces.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// Whether row_product_cuda() multiplies by encodings of the layout: groups apart, in one panel of
// u16 or u32 positions, in units of one entry or, without shared rows, of four.
bool has_row_kernels(const Layout& layout, int64_t columns);

// An encoding that it multiplies by, and the pieces of its long rows, in device memory.
struct RowWeight {
  RowMatrix matrix;
  Layout layout;
  DType dtype = DType::f32;
  RowCounts counts;
  int multiprocessors = 1;
  const RowPiece* piece_list = nullptr;
  const SplitRow* split_list = nullptr;
};

// How a product is computed. The order of a sum depends on the encoding and on both fields.
struct RowConfig {
  int row_groups = 1;   // of threads that share a row; at most as many as a warp has
  int tile_tokens = 1;  // rounded up to a tile that there is a kernel for, or down to the largest

  bool operator==(const RowConfig&) const = default;
};
std::string row_name(const RowConfig& config);
// Those that are worth a measurement, the best guess first, which is taken where nothing was
// measured.
std::vector<RowConfig> row_candidates(const RowWeight& weight, int64_t tokens);
RowConfig row_rule(const RowWeight& weight, int64_t tokens);
// The one whose sums are the same whatever the number of tokens.
RowConfig row_for_any_tokens(const RowWeight& weight);

// Of checked operands: C = A * B + bias, or the greater of that and 0.
struct RowProductOperands {
  DenseOperands dense;
  const void* bias = nullptr;  // [rows] or null
  bool relu = false;
  void* workspace = nullptr;  // of row_workspace_bytes()
};

// With any configuration.
int64_t row_workspace_bytes(const RowWeight& weight, int64_t tokens);
void row_product_cuda(const RowWeight& weight, const RowProductOperands& operands,
                      const RowConfig& config, const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
