#include "kernels/base/device_cuda.h"
#include "kernels/base/error.h"
#include "tools/bench_kernel.h"
#include "tools/read_bandwidth_device.h"

// Stands in for the CUDA side of the tools in a CPU-only build.
namespace sparsellm {

double read_bandwidth_cuda(int64_t, ExecContext&) { fail("{}", no_cuda_device_reason()); }

std::vector<std::string_view> kernel_bench_formats() { return {}; }

std::vector<KernelResult> bench_kernels(const KernelBenchOptions&,
                                        const std::function<void(const KernelResult&)>&) {
  fail("kernels cannot be benchmarked: {}", no_cuda_device_reason());
}

}  // namespace sparsellm
