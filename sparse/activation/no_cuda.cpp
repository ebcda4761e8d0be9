#include "kernels/base/error.h"
#include "sparse/activation/sign_words_device.h"

// Stands in for the CUDA side of activation sparsity in a CPU-only build.
namespace sparsellm {

OwnedSignWords pack_sign_words_cuda(const Tensor&, ExecContext&) {
  fail("sign words are not packed on GPUs in this build");
}

}  // namespace sparsellm
