#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/exec.h"
#include "sparse/general_sparse/cuda/device_encoding.h"
#include "sparse/general_sparse/cuda/row_matrix.h"

namespace sparsellm::general_sparse {

// Whether row_product_cuda() multiplies by encodings of the layout: groups apart, in one panel of
// u16 or u32 positions, in units of one entry or, without shared rows, of four.
bool has_row_kernels(const Layout& layout, int64_t columns);

// The rows of an encoding, of which long ones are cut into pieces, in device memory.
struct RowWeight {
  RowMatrix matrix;
  Layout layout;
  DType dtype = DType::f32;
  int64_t multiprocessors = 1;
  int64_t mean_entries = 0;  // of a row group
  int longest = 0;           // units of one that neither a warp nor a block has
  int block_pieces = 0;
  int warp_rows = 0;
  int partials = 0;
  int split_rows = 0;
  const RowPiece* piece_list = nullptr;
  const SplitRow* split_list = nullptr;
};

// C = A * B as Matrix::multiply() has it, of checked operands: B [K, tokens] with rows of b_stride
// elements, the element of C in row m and of token t at m * c_row + t * c_token.
struct RowProductOperands {
  const void* b = nullptr;
  int64_t b_stride = 0;
  void* c = nullptr;
  int64_t c_row = 0;
  int64_t c_token = 0;
  int64_t tokens = 0;
  void* workspace = nullptr;  // of row_workspace_bytes()
};

int64_t row_workspace_bytes(const RowWeight& weight, int64_t tokens);
void row_product_cuda(const RowWeight& weight, const RowProductOperands& operands,
                      const ExecContext& ctx);
std::string row_plan_text(const RowWeight& weight, int64_t tokens);

}  // namespace sparsellm::general_sparse
