#include "kernels/base/choose_device.h"
#include "kernels/base/error.h"
#include "tools/bench/fp8_rounding.h"
#include "tools/bench/library_contenders.h"
#include "tools/bench/matrix_library_contenders.h"
#include "tools/bench/profile_device.h"
#include "tools/bench/read_bandwidth_device.h"
#include "tools/bench/verify_product_device.h"

// Stands in for the CUDA side of the tools in a CPU-only build. What takes a context with a CUDA
// device is never called, since there is none.
namespace sparsellm {

double read_bandwidth_cuda(int64_t, ExecContext&) { fail("{}", kCpuOnlyBuild); }

void product_reference_cuda(const Tensor&, const Tensor&, const ProductSums&, ExecContext&) {
  fail("{}", kCpuOnlyBuild);
}
double product_error_cuda(const Tensor&, const ProductSums&, double, const Tensor&, ExecContext&) {
  fail("{}", kCpuOnlyBuild);
}
void poison_cuda(const Tensor&, ExecContext&) { fail("{}", kCpuOnlyBuild); }

std::unique_ptr<Contender> make_cublas_contender(const ContenderInput&) {
  fail("{}", kCpuOnlyBuild);
}
std::unique_ptr<Contender> make_cublaslt_contender(const ContenderInput&) {
  fail("{}", kCpuOnlyBuild);
}
std::unique_ptr<Contender> make_reduced_cublas_contender(const ContenderInput&) {
  fail("{}", kCpuOnlyBuild);
}
std::unique_ptr<Contender> make_fp8_contender(const ContenderInput&) { fail("{}", kCpuOnlyBuild); }
void round_to_fp8_cuda(const Tensor&, ExecContext&) { fail("{}", kCpuOnlyBuild); }
std::unique_ptr<Contender> make_cusparse_contender(const ContenderInput&) {
  fail("{}", kCpuOnlyBuild);
}
std::unique_ptr<MatrixContender> make_cusparse_matrix_contender(const MatrixInput&) {
  fail("{}", kCpuOnlyBuild);
}
std::unique_ptr<MatrixContender> make_dense_matrix_contender(const MatrixInput&) {
  fail("{}", kCpuOnlyBuild);
}
void profile_cuda(const std::function<void()>&, const ExecContext&) { fail("{}", kCpuOnlyBuild); }

}  // namespace sparsellm
