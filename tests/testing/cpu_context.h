#pragma once

#include <cstdint>

#include "kernels/base/exec.h"

namespace sparsellm::testing {

// What an op on the CPU device needs.
struct CpuContext {
  explicit CpuContext(int thread_count = 1, int64_t workspace_bytes = 1 << 20)
      : workspace(Device{}, workspace_bytes), threads(thread_count) {}

  Workspace workspace;
  ThreadPool threads;
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
};

}  // namespace sparsellm::testing
