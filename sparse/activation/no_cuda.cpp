#include "kernels/base/error.h"
#include "sparse/activation/fused_mlp_device.h"
#include "sparse/activation/sign_words_device.h"

// Stands in for the CUDA side of activation sparsity in a CPU-only build.
namespace sparsellm {

OwnedSignWords pack_sign_words_cuda(const Tensor&, ExecContext&) {
  fail("sign words are not packed on GPUs in this build");
}

bool fused_mlp_fits_cuda(const FusedMlp&, const ExecContext&) { return false; }
void fused_mlp_cuda(const Tensor&, const Tensor&, const FusedMlp&, Tensor, ExecContext&) {
  fail("this build has no kernels of MLPs for GPUs");
}

}  // namespace sparsellm
