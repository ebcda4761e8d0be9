#pragma once

#include "kernels/base/device.h"

namespace sparsellm::testing {

// Waits for all that any context has enqueued on a CUDA device, with which copy_bytes() and the end
// of a Buffer are not ordered, so that tests need not know which context that was. Nothing on the
// CPU, nor in a CPU-only build.
void wait_for_device(Device device);

}  // namespace sparsellm::testing
