#include "kernels/base/error.h"
#include "sparse/general_sparse/cuda/product_plan.h"

namespace sparsellm::general_sparse {
namespace {

constexpr std::string_view kSlices = "slices ";

}  // namespace

std::string to_text(const ProductPlan& plan) {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    return sparsellm::to_text(*expansion);
  }
  return fmt::format("{}{}", kSlices, slice_name(std::get<SliceConfig>(plan)));
}

std::optional<ProductPlan> product_plan_from(std::string_view text, const SliceWeight* weight,
                                             int64_t rows, int64_t columns, int64_t tokens) {
  if (!text.starts_with(kSlices)) {
    return expansion_from(text, rows, columns, tokens);
  }
  return weight == nullptr ? std::nullopt
                           : plan_named<ProductPlan>(slice_candidates(*weight, tokens), slice_name,
                                                     text.substr(kSlices.size()));
}

std::string ProductKey::text() const {
  return fmt::format("{} x {}, {} %, {}, {} to {}, {} tokens{}", rows, columns, percent, layout,
                     name_of(dtype), name_of(y), tokens,
                     launches == Launches::ordinary ? ", ordinary launches" : "");
}

}  // namespace sparsellm::general_sparse
