#include "kernels/base/error.h"
#include "sparse/general_sparse/cuda/product_plan.h"

namespace sparsellm::general_sparse {
namespace {

constexpr std::string_view kSlices = "slices ";
constexpr std::string_view kRows = "rows ";

}  // namespace

std::string to_text(const ProductPlan& plan) {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    return sparsellm::to_text(*expansion);
  }
  if (const auto* rows = std::get_if<RowConfig>(&plan)) {
    return fmt::format("{}{}", kRows, row_name(*rows));
  }
  return fmt::format("{}{}", kSlices, slice_name(std::get<SliceConfig>(plan)));
}

std::optional<ProductPlan> product_plan_from(std::string_view text, const ProductKernels& kernels,
                                             int64_t rows, int64_t columns, int64_t tokens) {
  if (kernels.slices && text.starts_with(kSlices)) {
    return plan_named<ProductPlan>(slice_candidates(*kernels.slices, tokens), slice_name,
                                   text.substr(kSlices.size()));
  }
  if (kernels.rows && text.starts_with(kRows)) {
    return plan_named<ProductPlan>(row_candidates(*kernels.rows, tokens), row_name,
                                   text.substr(kRows.size()));
  }
  return expansion_from(text, rows, columns, tokens);
}

std::string ProductKey::text() const {
  return fmt::format("{} x {}, {} %, {}, {} to {}, {} tokens{}", rows, columns, percent, layout,
                     name_of(dtype), name_of(y), tokens,
                     launches == Launches::ordinary ? ", ordinary launches" : "");
}

}  // namespace sparsellm::general_sparse
