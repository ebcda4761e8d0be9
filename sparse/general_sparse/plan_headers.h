#pragma once

namespace sparsellm::general_sparse {

// The headers of a plan's kernels (device/plan_product.cuh and what it includes), as text that
// includes nothing: made when the program is built (embed_headers.cmake).
extern const char* const kPlanHeaders;

}  // namespace sparsellm::general_sparse
