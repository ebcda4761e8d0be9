#pragma once

#include "kernels/base/kernel_compiler.h"
#include "sparse/general_sparse/plan.h"
#include "sparse/general_sparse/plan_work.h"

namespace sparsellm::general_sparse {

// Names of the kernels in the text of plan_source(), which take PlanOperands
// (device/plan_operands.h).
// The second one adds the sums of rows that several thread blocks have; plans whose blocks have
// whole rows lack it.
inline constexpr const char* kProductKernel = "general_sparse_product";
inline constexpr const char* kBlockRowsKernel = "general_sparse_block_rows";

// CUDA C++ for the kernels of a valid plan: the text of the templates (device/plan_product.cuh),
// which is always the same, then a struct of constants and types and the offset functions of the
// matrix. Whoever has the same plan and facts gets the same text. Throws Error for facts that no
// kernel has: other types, offsets beyond 32 bits.
KernelSource plan_source(const KernelPlan& plan, const PlanFacts& facts, int architecture);

}  // namespace sparsellm::general_sparse
