#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/general_sparse/cuda/row_product_cuda.h"
#include "sparse/general_sparse/cuda/slice_product_cuda.h"
#include "sparse/product_plan.h"

namespace sparsellm::general_sparse {

// What a weight is multiplied by where it is not expanded: the kernels of interleaved encodings, or
// those of others; neither, where there are none for the layout.
struct ProductKernels {
  std::optional<SliceWeight> slices = {};
  std::optional<RowWeight> rows = {};
};

// How a product is computed: by expansion, or by one of these.
using ProductPlan = std::variant<Expansion, SliceConfig, RowConfig>;

// The text of an expansion, "slices <configuration>" or "rows <configuration>", and back; nothing
// for other text, and for what cannot be chosen for such a product.
std::string to_text(const ProductPlan& plan);
std::optional<ProductPlan> product_plan_from(std::string_view text, const ProductKernels& kernels,
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
