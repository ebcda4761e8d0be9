#include "kernels/base/error.h"
#include "sparse/tiled_csl/ablation/ablation.h"

// Stands in for the kernels in a CPU-only build.
namespace sparsellm::tiled_csl {

std::unique_ptr<AblatedWeight> ablate(const Tensor&, const std::function<int64_t(int64_t)>&,
                                      ExecContext&) {
  fail("the weight format tiled_csl has no kernels for GPUs in this build");
}

}  // namespace sparsellm::tiled_csl
