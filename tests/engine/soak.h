#pragma once

#include "kernels/base/device.h"
#include "tests/testing/sanitized.h"

namespace sparsellm::testing {

struct SoakOptions {
  Device device = {};
  int ranks = 1;
  int requests = kSanitized ? 20 : 200;
};

// Many requests of every kind come, wait, are cut off and go, with too little memory for all, on an
// engine that is deterministic: each has to hear what it hears when it is alone.
void soak(const SoakOptions& how = {});

}  // namespace sparsellm::testing
