#pragma once

#include <vector>

#include "kernels/base/open_directory.h"
#include "tools/bench/matrix_source.h"

namespace sparsellm {

// Reads a list of random matrices, such as configs/matrices/spmm.json:
//   {"description": "...",  (may be left out)
//    "matrices": [{"name": "stencil-640k", "class": "stencil", "rows": 640000, "columns": 640000,
//                  "nonzeros": 5760000, "seed": 8}, ...]}
// with the parameters that its class has (sparse/matrices/random_matrix.h), which may be left out:
//   banded      band_density
//   blocks      block_rows, block_columns
//   skewed      length_deviation
//   empty-rows  empty_rows
// Throws Error that names the file and the entry for anything else, for numbers out of range, for
// names that are empty or come twice, and for a list without matrices.
std::vector<MatrixSource> read_matrix_list(const InputFile& file);

}  // namespace sparsellm
