#include "kernels/base/error.h"
#include "sparse/tiled_csl/cuda/tile_weight_cuda.h"

// Stands in for the CUDA side of the format in a CPU-only build.
namespace sparsellm::tiled_csl {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail("the weight format tiled_csl has no kernels for GPUs in this build");
}

}  // namespace

std::unique_ptr<WeightMatrix> load_tiles_cuda(const RecordUploads&, const LoadContext&) {
  fail_without_cuda();
}

std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor&, ExecContext&) {
  fail_without_cuda();
}

}  // namespace sparsellm::tiled_csl
