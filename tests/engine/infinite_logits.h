#pragma once

#include "kernels/base/device.h"

namespace sparsellm::testing {

// Requests to models whose weights make one logit NaN or infinite, in every way in which a request
// may use logits: each ends with an error that says so.
void expect_infinite_logits_are_errors(Device device);

}  // namespace sparsellm::testing
