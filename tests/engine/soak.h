#pragma once

#include <functional>
#include <memory>

#include "engine/step_runner.h"
#include "kernels/base/device.h"
#include "tests/testing/sanitized.h"

namespace sparsellm::testing {

struct SoakOptions {
  Device device = {};
  int ranks = 1;
  int requests = kSanitized ? 20 : 200;
  // EngineOptions::wrap_runner
  std::function<std::unique_ptr<StepRunner>(std::unique_ptr<StepRunner>)> wrap_runner = {};
};

// Many requests of every kind come, wait, are cut off and go, with too little memory for all, on an
// engine that is deterministic: each has to hear what it hears when it is alone.
void soak(const SoakOptions& how = {});

}  // namespace sparsellm::testing
