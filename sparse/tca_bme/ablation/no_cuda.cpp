#include "kernels/base/error.h"
#include "sparse/tca_bme/ablation/ablation.h"

// Stands in for the kernels in a CPU-only build.
namespace sparsellm::tca_bme {

// NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<AblatedWeight> ablate(const Tensor&, std::vector<const WeightMatrix*>) {
  fail("the weight format tca_bme has no kernels for GPUs in this build");
}

}  // namespace sparsellm::tca_bme
