#pragma once

#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Where and how a benchmark runs: version, commit, date (UTC), command line, device, CPU; on a CUDA
// device also the GPU, its memory and clocks, and the versions of driver, CUDA and cuBLAS. What
// cannot be found out is left out.
Environment describe_environment(Device device, const std::vector<std::string>& command_line,
                                 CpuIsa isa = best_cpu_isa());

// A command line as one can type it into a shell.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace sparsellm
