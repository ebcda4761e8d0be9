#pragma once

#include "kernels/base/device.h"
#include "kernels/base/parallel.h"
#include "kernels/base/workspace.h"

namespace sparsellm {

// What an op needs to run, passed down as the last argument: the device, scratch memory, and the
// threads of the CPU device.
struct ExecContext {
  Device device;
  Workspace& workspace;
  ThreadPool& threads;
};

}  // namespace sparsellm
