#include "kernels/base/error.h"
#include "sparse/general_sparse/cuda/plan_product_cuda.h"

// Stands in for products by plans in a CPU-only build.
namespace sparsellm::general_sparse {
namespace {

[[noreturn]] void fail_without_plan_kernels() {
  fail("plans of general_sparse have no kernels in this build, which has no CUDA");
}

}  // namespace

struct PlanProduct::State {};

PlanProduct::PlanProduct(const PlanMatrix&, const KernelPlan&, const PlanWork&, const PlanFacts&,
                         std::span<const std::byte>, const CudaContext&) {
  fail_without_plan_kernels();
}
PlanProduct::PlanProduct(const PlanMatrix&, const KernelPlan&, const PlanWork&, const PlanKernels&,
                         const CudaContext&) {
  fail_without_plan_kernels();
}
PlanProduct::~PlanProduct() = default;
PlanProduct::PlanProduct(PlanProduct&&) noexcept = default;
PlanProduct& PlanProduct::operator=(PlanProduct&&) noexcept = default;

void PlanProduct::multiply(const DenseOperands&, void*, const ExecContext&) const {
  fail_without_plan_kernels();
}
int64_t PlanProduct::workspace_bytes(int64_t) const { fail_without_plan_kernels(); }
int64_t PlanProduct::bytes() const { fail_without_plan_kernels(); }
PlanProduct PlanProduct::for_copy(const PlanMatrix&) const { fail_without_plan_kernels(); }
const KernelPlan& PlanProduct::plan() const { fail_without_plan_kernels(); }

}  // namespace sparsellm::general_sparse
