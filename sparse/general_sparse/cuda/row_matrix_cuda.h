#pragma once

#include <memory>
#include <optional>

#include "sparse/general_sparse/format/layout.h"
#include "sparse/general_sparse/general_matrix.h"

namespace sparsellm::general_sparse {

// load_matrix() for a CUDA device, in a layout that has_row_kernels() is true of, or, without one,
// in that of choose_row_layout(); throws Error in a CPU-only build.
std::unique_ptr<Matrix> load_matrix_cuda(const CompressedRows& m,
                                         const std::optional<Layout>& chosen, const Device& device,
                                         ThreadPool& threads);

}  // namespace sparsellm::general_sparse
