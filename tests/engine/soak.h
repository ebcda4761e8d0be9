#pragma once

#include "kernels/base/device.h"

namespace sparsellm::testing {

// Many requests of every kind come, wait, are cut off and go, with too little memory for all, on an
// engine that is deterministic: each has to hear what it hears when it is alone.
void soak(Device device);

}  // namespace sparsellm::testing
