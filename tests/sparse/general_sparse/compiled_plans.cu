#include <vector>

#include "sparse/general_sparse/cuda/plan_kernels.cuh"
#include "tests/sparse/general_sparse/compiled_plans.h"

namespace sparsellm::testing {
namespace {

using namespace general_sparse;

constexpr Division kSplitRow{RowCount::one, RowEnds::split};
constexpr Division kSplitRows{RowCount::several, RowEnds::split};

constexpr KernelPlan kThreadPerRow{.threads = 256};
constexpr KernelPlan kWarpPerRow{.tokens_per_thread = 4,
                                 .threads_per_group = 2,
                                 .warp = {RowCount::one, RowEnds::whole},
                                 .thread = kSplitRow,
                                 .step_nonzeros = 4,
                                 .x_vector = 4,
                                 .x_order = XOrder::transposed,
                                 .warp_reduction = Reduction::total};
constexpr KernelPlan kEqualShares{.tokens_per_thread = 2,
                                  .threads_per_group = 4,
                                  .block = kSplitRows,
                                  .warp = kSplitRows,
                                  .thread = kSplitRows,
                                  .step_nonzeros = 2,
                                  .x_vector = 2,
                                  .x_order = XOrder::transposed,
                                  .thread_reduction = Reduction::bitmap,
                                  .warp_reduction = Reduction::segment,
                                  .block_reduction = Reduction::segment};

template <class Value, KernelPlan plan>
CompiledPlan compiled(DType dtype) {
  return {.plan = plan,
          .dtype = dtype,
          .kernels = plan_kernels<ArrayPlan<plan, Value, unsigned short, 1, 0>>()};
}

}  // namespace

std::span<const CompiledPlan> compiled_plans() {
  static const std::vector<CompiledPlan> plans{compiled<float, kThreadPerRow>(DType::f32),
                                               compiled<DeviceF16, kWarpPerRow>(DType::f16),
                                               compiled<DeviceBf16, kEqualShares>(DType::bf16),
                                               compiled<float, kEqualShares>(DType::f32),
                                               compiled<DeviceF16, kThreadPerRow>(DType::f16),
                                               compiled<DeviceBf16, kWarpPerRow>(DType::bf16)};
  return plans;
}

}  // namespace sparsellm::testing
