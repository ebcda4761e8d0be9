#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/exec.h"
#include "sparse/general_sparse/cuda/dense_operands.h"
#include "sparse/general_sparse/plan.h"
#include "sparse/general_sparse/plan_work.h"

namespace sparsellm::general_sparse {

// The arrays of an encoding on a CUDA device, which outlive the product, aligned to 16 bytes.
struct PlanMatrix {
  const void* positions = nullptr;
  const void* values = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int shared_rows = 1;
};

// Kernels of device/plan_product.cuh that were compiled with the program, for offsets that are
// arrays of u32 (PlanWork).
struct PlanKernels {
  const void* product = nullptr;
  const void* block_rows = nullptr;  // none if blocks have whole rows
};

// Products by a plan's kernels on a CUDA device: these and the work arrays of a matrix. In a
// CPU-only build the constructors throw.
class PlanProduct {
 public:
  // `code`: of plan_source(plan, facts, ...). Throws Error for code that the device does not run.
  PlanProduct(const PlanMatrix& matrix, const KernelPlan& plan, const PlanWork& work,
              const PlanFacts& facts, std::span<const std::byte> code, const CudaContext& context);
  PlanProduct(const PlanMatrix& matrix, const KernelPlan& plan, const PlanWork& work,
              const PlanKernels& kernels, const CudaContext& context);
  ~PlanProduct();
  PlanProduct(PlanProduct&& other) noexcept;
  PlanProduct& operator=(PlanProduct&& other) noexcept;
  // For a copy of the matrix; work arrays are copied, kernels shared.
  PlanProduct for_copy(const PlanMatrix& matrix) const;

  // Enqueues in the queue of `ctx`; may be captured. Element (k, t) of B is where the plan's
  // x_order says. `workspace`: of workspace_bytes(). Throws Error for more tokens, or tiles of
  // them, than a launch takes.
  void multiply(const DenseOperands& operands, void* workspace, const ExecContext& ctx) const;
  // Sums of rows that several thread blocks have.
  int64_t workspace_bytes(int64_t tokens) const;
  // Of the work arrays.
  int64_t bytes() const;
  const KernelPlan& plan() const;

 private:
  struct State;
  explicit PlanProduct(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm::general_sparse
