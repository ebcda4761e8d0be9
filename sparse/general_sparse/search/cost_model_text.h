#pragma once

namespace sparsellm::general_sparse {

// The text of configs/cost_models/h200.json.
extern const char* const kCostModelText;

}  // namespace sparsellm::general_sparse
