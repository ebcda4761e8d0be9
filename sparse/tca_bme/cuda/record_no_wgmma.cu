#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"

// Stands in for record_wgmma_cuda.cu in a build that has no code for compute capability 9.0.
namespace sparsellm {
namespace {

[[noreturn]] void fail_without_wgmma() {
  fail(
      "products of records by warpgroups are for compute capability 9.0, which is not among the "
      "GPU architectures of this build");
}

}  // namespace

std::string record_wgmma_name(const RecordWgmmaConfig&) { fail_without_wgmma(); }

void record_wgmma_cuda(const RecordMatrix&, const CudaProductOperands&, const RecordWgmmaConfig&,
                       const ExecContext&) {
  fail_without_wgmma();
}

bool record_wgmma_takes(const RecordMatrix&, const CudaProductOperands&) { return false; }

bool record_wgmma_rounds_x(const RecordMatrix&, const RecordWgmmaConfig&) { return false; }

bool record_wgmma_fits(const RecordMatrix&, const RecordWgmmaConfig&) { return false; }

int64_t record_wgmma_workspace_bytes(const RecordMatrix&, const RecordWgmmaConfig&, int64_t) {
  return 0;
}

std::vector<RecordWgmmaConfig> record_wgmma_candidates(const RecordMatrix&, int64_t) { return {}; }

}  // namespace sparsellm
