#pragma once

#include <optional>

#include "kernels/base/parallel.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// The matrix without the zeros among its values, -0 too; nothing if there are none.
std::optional<CompressedRows> drop_zeros(const CompressedRows& m, ThreadPool& threads);

}  // namespace sparsellm::general_sparse
