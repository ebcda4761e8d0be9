#include "kernels/base/choose_device.h"
#include "kernels/base/error.h"
#include "sparse/activation/ablation/ablation.h"

// Stands in for the kernels in a CPU-only build.
namespace sparsellm {

std::unique_ptr<AblatedMlp> ablate_mlp(MlpAblation, const ExecContext&) {
  fail("{}", kCpuOnlyBuild);
}
int64_t ablated_mlp_workspace_bytes(int64_t, int64_t) { return 0; }

}  // namespace sparsellm
