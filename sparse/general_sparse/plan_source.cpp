#include "sparse/general_sparse/plan_source.h"

#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "sparse/general_sparse/plan_headers.h"

namespace sparsellm::general_sparse {
namespace {

std::string_view value_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float";
    case DType::f16:
      return "DeviceF16";
    case DType::bf16:
      return "DeviceBf16";
    default:
      fail("plan: there are kernels for f32, f16 and bf16, not for {}", name_of(dtype));
  }
}

std::string_view position_type(PositionCode code) {
  require(code == PositionCode::u16 || code == PositionCode::u32,
          "plan: positions of kernels are of u16 or u32");
  return code == PositionCode::u16 ? "unsigned short" : "unsigned";
}

std::string_view source_of(RowCount rows) {
  return rows == RowCount::one ? "RowCount::one" : "RowCount::several";
}
std::string_view source_of(RowEnds ends) {
  return ends == RowEnds::whole ? "RowEnds::whole" : "RowEnds::split";
}
std::string source_of(const Division& division) {
  return fmt::format("{{{}, {}}}", source_of(division.rows), source_of(division.ends));
}
std::string_view source_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return "Reduction::none";
    case Reduction::total:
      return "Reduction::total";
    case Reduction::bitmap:
      return "Reduction::bitmap";
    default:
      return "Reduction::segment";
  }
}
std::string_view source_of(XOrder order) {
  return order == XOrder::by_token ? "XOrder::by_token" : "XOrder::transposed";
}

std::string source_of(const KernelPlan& plan) {
  return fmt::format(R"(.tokens_per_thread = {},
                                    .threads_per_group = {},
                                    .warps_per_group = {},
                                    .block = {},
                                    .warp = {},
                                    .thread = {},
                                    .thread_nonzeros = {},
                                    .step_nonzeros = {},
                                    .a_vector = {},
                                    .x_vector = {},
                                    .x_order = {},
                                    .thread_reduction = {},
                                    .warp_reduction = {},
                                    .block_reduction = {},
                                    .threads = {})",
                     plan.tokens_per_thread, plan.threads_per_group, plan.warps_per_group,
                     source_of(plan.block), source_of(plan.warp), source_of(plan.thread),
                     plan.thread_nonzeros, plan.step_nonzeros, plan.a_vector, plan.x_vector,
                     source_of(plan.x_order), source_of(plan.thread_reduction),
                     source_of(plan.warp_reduction), source_of(plan.block_reduction), plan.threads);
}

std::string kernel_text(const char* name, const char* function, int threads) {
  return fmt::format(R"(
extern "C" __global__ void __launch_bounds__({}) {}(const __grid_constant__ PlanOperands operands) {{
  {}<CompiledPlan>(operands);
}}
)",
                     threads, name, function);
}

}  // namespace

KernelSource plan_source(const KernelPlan& plan, const PlanFacts& facts, int architecture) {
  std::string text = kPlanHeaders;
  text += fmt::format("\nnamespace sparsellm::general_sparse {{\n\n// {}\n{}\n{}", to_text(plan),
                      facts.part_begin.to_source("part_begin_of"), facts.row.to_source("row_of"));
  text += fmt::format(R"(
struct CompiledPlan {{
  using Value = {};
  using Position = {};
  static constexpr KernelPlan kPlan{{{}}};
  static constexpr int R = {};
  static constexpr int kPartGroups = {};
  static constexpr bool kPartIsRow = {};
  static constexpr int kGroupLoads = {};
  static __device__ unsigned part_begin(unsigned i, const void* table) {{
    return part_begin_of(i, table);
  }}
  static __device__ unsigned row(unsigned i, const void* table) {{ return row_of(i, table); }}
}};
)",
                      value_type(facts.dtype), position_type(facts.positions), source_of(plan),
                      facts.shared_rows, part_groups(plan), part_is_row(plan), facts.group_loads);
  text += kernel_text(kProductKernel, "multiply_by_plan", plan.threads);
  if (plan.block.ends == RowEnds::split) {
    text += kernel_text(kBlockRowsKernel, "add_block_rows", plan.threads);
  }
  text += "\n}  // namespace sparsellm::general_sparse\n";
  return {.name = "general_sparse", .text = std::move(text), .architecture = architecture};
}

}  // namespace sparsellm::general_sparse
