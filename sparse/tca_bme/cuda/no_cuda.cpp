#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_device.h"
#include "sparse/tca_bme/cuda/record_weight_cuda.h"

// Stands in for the CUDA side of the format in a CPU-only build.
namespace sparsellm::tca_bme {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail("the weight format tca_bme has no kernels for GPUs in this build");
}

}  // namespace

std::unique_ptr<WeightMatrix> load_records_cuda(const RecordUploads&, const LoadContext&) {
  fail_without_cuda();
}

std::unique_ptr<WeightMatrix> load_quantized_cuda(const QuantizedUploads&, const LoadContext&) {
  fail_without_cuda();
}

std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor&, RecordsFor, ExecContext&) {
  fail_without_cuda();
}

std::unique_ptr<WeightMatrix> encode_quantized_weight_cuda(const Tensor&, std::string_view,
                                                           const QuantizedChoice&, ExecContext&) {
  fail_without_cuda();
}

}  // namespace sparsellm::tca_bme

sparsellm::ClusterCounts sparsellm::count_clusters(Device) { return {}; }
