#include "kernels/base/error.h"
#include "sparse/general_sparse/cuda/general_weight_cuda.h"
#include "sparse/general_sparse/cuda/row_matrix_cuda.h"

// Stands in for the CUDA side of the format in a CPU-only build.
namespace sparsellm::general_sparse {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail("the weight format general_sparse has no kernels for GPUs in this build");
}

}  // namespace

std::unique_ptr<WeightMatrix> load_encoding_cuda(EncodedWeight, const LoadContext&) {
  fail_without_cuda();
}

std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor&, const ExecContext&) {
  fail_without_cuda();
}

std::unique_ptr<Matrix> load_matrix_cuda(const CompressedRows&, const std::optional<Layout>&,
                                         const Device&, ThreadPool&) {
  fail_without_cuda();
}

}  // namespace sparsellm::general_sparse
