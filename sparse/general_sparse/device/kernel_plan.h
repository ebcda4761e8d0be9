#pragma once

// What one generated kernel does: a point of GeneralSparse's search space (Wang et al., ATC 2025:
// its dense and sparse division, adjustment and reductions). Host and kernels have the same struct;
// plan.h has what a plan may be. The run-time compiler has no headers, and no functions of the
// host: nothing is included, and there are no functions.
namespace sparsellm::general_sparse {

// What of the matrix's rows the nonzeros of a thread, a warp or a block are. Threads of a group
// have the same nonzeros.
enum class RowCount : unsigned char { one, several };
enum class RowEnds : unsigned char { whole, split };  // split: rows go on in the next one
struct Division {
  RowCount rows = RowCount::several;
  RowEnds ends = RowEnds::whole;

  bool operator==(const Division&) const = default;
};

// reductions.cuh
enum class Reduction : unsigned char { none, total, bitmap, segment };

// Where element (k, t) of B is, the one of column k of the matrix and token t.
enum class XOrder : unsigned char {
  by_token,    // t * stride + k: [tokens, in], as x of a linear layer is
  transposed,  // k * stride + t: B [K, N] by rows; tokens of a column can be loaded at once
};

// By default a thread has a row.
struct KernelPlan {
  // Dense division. A block's tile has the product of these tokens.
  int tokens_per_thread = 1;  // 1, 2, 4, 8
  int threads_per_group = 1;  // with the same nonzeros and other tokens; 1, 2, 4, ..., 32
  int warps_per_group = 1;    // likewise, of a block; 1, 2, 4, 8

  // Sparse division.
  Division block{};
  Division warp{};
  Division thread{.rows = RowCount::one};
  // What a thread has, 1, 2, 4, ..., 64: less where its row, its warp or its block ends, and more
  // where one has a whole row that is longer. 0: as the rows have it (plan_work.h).
  int thread_nonzeros = 0;

  // Adjustment.
  int step_nonzeros = 1;  // that a thread loads before it multiplies them; 1, 2, 4, 8
  int a_vector = 1;       // values of the matrix in one load; 1, 2, 4, 8
  int x_vector = 1;       // tokens of x in one load; 1, 2, 4, 8
  XOrder x_order = XOrder::by_token;

  Reduction thread_reduction = Reduction::total;
  Reduction warp_reduction = Reduction::none;
  Reduction block_reduction = Reduction::none;

  int threads = 128;  // of a block; 32, 64, ..., 1024

  bool operator==(const KernelPlan&) const = default;
};

}  // namespace sparsellm::general_sparse
