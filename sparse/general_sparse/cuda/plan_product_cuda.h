#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/exec.h"
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

// C = A * B of the dtype of A, of checked operands. Element (k, t) of B is where the plan's x_order
// says, in rows of b_stride elements, that of C in row m and of token t at m * c_row + t * c_token.
// C does not overlap B.
struct PlanProductOperands {
  const void* b = nullptr;
  int64_t b_stride = 0;
  void* c = nullptr;
  int64_t c_row = 0;
  int64_t c_token = 0;
  int64_t tokens = 0;
  void* workspace = nullptr;  // of workspace_bytes()
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

  // Enqueues in the queue of `ctx`; may be captured. Throws Error for more tokens, or tiles of
  // them, than a launch takes.
  void multiply(const PlanProductOperands& operands, const ExecContext& ctx) const;
  // Sums of rows that several thread blocks have.
  int64_t workspace_bytes(int64_t tokens) const;
  // Of the work arrays.
  int64_t bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm::general_sparse
