#pragma once

#include <functional>

#include "kernels/base/exec.h"

namespace sparsellm {

// Shows what `work` enqueues on the context's stream to a profiler that looks at nothing else (such
// as ncu --profile-from-start off), and waits for it. On CUDA. Throws Error.
void profile_cuda(const std::function<void()>& work, const ExecContext& ctx);

}  // namespace sparsellm
