#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/general_sparse/cuda/slice_product_cuda.h"
#include "sparse/product_plan.h"

namespace sparsellm::general_sparse {

// How a product is computed: by expansion, or by the kernels of slice_product_cuda.h.
using ProductPlan = std::variant<Expansion, SliceConfig>;

// The text of an expansion or "slices <configuration>", and back; nothing for other text, and for
// what cannot be chosen for such a product.
std::string to_text(const ProductPlan& plan);
std::optional<ProductPlan> product_plan_from(std::string_view text, const SliceWeight* weight,
                                             int64_t rows, int64_t columns, int64_t tokens);

// What the choice of a plan depends on.
struct ProductKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t percent = 0;  // of nonzeros, to a multiple of 5
  std::string layout;
  DType dtype = DType::f16;
  DType y = DType::f16;
  int64_t tokens = 0;  // their bucket
  Launches launches = Launches::overlapping;

  std::string text() const;  // for files
  auto operator<=>(const ProductKey&) const = default;
};

}  // namespace sparsellm::general_sparse
