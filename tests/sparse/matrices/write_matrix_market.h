#pragma once

#include <string>

#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::testing {

// A matrix of f32 as a general .mtx file, row after row, with values that read_matrix_market()
// reads as they are.
std::string matrix_market_text(const CompressedRows& m);

}  // namespace sparsellm::testing
