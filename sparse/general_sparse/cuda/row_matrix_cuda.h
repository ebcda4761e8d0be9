#pragma once

#include <memory>

#include "sparse/general_sparse/general_matrix.h"

namespace sparsellm::general_sparse {

// load_matrix() for a CUDA device; throws Error in a CPU-only build.
std::unique_ptr<Matrix> load_matrix_cuda(const CompressedRows& m, const Device& device,
                                         ThreadPool& threads);

}  // namespace sparsellm::general_sparse
