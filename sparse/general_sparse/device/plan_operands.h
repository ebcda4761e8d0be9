#pragma once

// What the kernels of plan_product.cuh take, for host and device. Nothing is included; pointers are
// of the device.
namespace sparsellm::general_sparse {

// 32 consecutive items, which are loads or parts (plan_work.h): a bit for each, set where a row
// starts, and how many rows start in items before these.
struct alignas(8) RowStarts {
  unsigned bits = 0;
  unsigned before = 0;
};

// A row that several thread blocks have.
struct BlockRow {
  unsigned row = 0;  // of C, a group of rows that share positions
  unsigned first_block = 0;
  unsigned blocks = 0;
};

struct PlanOperands {
  // The matrix. A load is `a_vector` entries: a position of each, and values of R rows.
  const void* positions = nullptr;
  const void* values = nullptr;
  unsigned loads = 0;
  unsigned rows = 0;

  // Its work arrays (plan_work.h).
  unsigned parts = 0;
  unsigned part_blocks = 0;
  const void* part_table = nullptr;  // of the offset functions
  const void* row_table = nullptr;
  const RowStarts* starts = nullptr;
  const unsigned* empty_rows = nullptr;
  const BlockRow* block_rows = nullptr;
  unsigned empty_count = 0;
  // Whether vectors of tokens of B and of C are aligned.
  bool vectors = false;

  const void* b = nullptr;
  void* c = nullptr;          // element (m, t) is at m * c_row + t * c_token
  float* partials = nullptr;  // [tiles, part_blocks, 2: leading and trailing, R, tokens of a tile]
  long long b_stride = 0;
  long long c_row = 0;
  long long c_token = 0;
  int tokens = 0;
};

}  // namespace sparsellm::general_sparse
