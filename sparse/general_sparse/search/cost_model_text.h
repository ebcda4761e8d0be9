#pragma once

namespace sparsellm::general_sparse {

// The text of configs/cost_models/h100.json.
extern const char* const kCostModelText;

}  // namespace sparsellm::general_sparse
