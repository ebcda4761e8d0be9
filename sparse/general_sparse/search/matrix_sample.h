#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "sparse/general_sparse/plan_work.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// Some rows of a matrix, and how many there are for each of them.
struct RowSample {
  std::vector<uint32_t> starts = {};  // of units, as those of an encoding that is not sorted
  double scale = 1.0;
};

// A sparse matrix as far as the times of plans depend on it. "Row" is a group of rows that share
// positions.
struct MatrixSample {
  DType dtype = DType::f32;
  Layout layout = {};
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t entries = 0;  // of all rows, fillers included
  int64_t empty_rows = 0;
  // The rows of some windows that are evenly far apart, or all of them; and by themselves the
  // longest rows, of which windows may have none.
  RowSample usual = {};
  RowSample longest = {};
  // Distinct columns in 1,024 consecutive entries, divided by 1,024: a mean. And distinct sectors
  // of 32 bytes of a row of B^T that these columns are in, likewise.
  double distinct_columns = 1.0;
  double distinct_sectors = 1.0;

  EncodedRows view(const RowSample& of) const;
};

// `positions`: those of the encoding, u16 or u32.
MatrixSample sample_of(const EncodedRows& encoding, DType dtype, int64_t columns,
                       std::span<const std::byte> positions);

// Of the encoding that load_matrix() makes on a CUDA device.
MatrixSample sample_of(const CompressedRows& m, ThreadPool& threads);

}  // namespace sparsellm::general_sparse
