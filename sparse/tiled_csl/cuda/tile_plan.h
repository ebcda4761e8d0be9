#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/product_plan.h"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"

namespace sparsellm::tiled_csl {

// How a product is computed: by expansion, or by kernels that extract tiles (tile_matmul_cuda()).
using TilePlan = std::variant<Expansion, TileMatmulConfig>;

// The text of an expansion or "extract <configuration>", and back; nothing for other text, and for
// what cannot be chosen for such a product.
std::string to_text(const TilePlan& plan);
std::optional<TilePlan> plan_from(std::string_view text, const TileMatrix& matrix, int64_t tokens);

// What the choice of a plan depends on.
struct TileKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t percent = 0;  // of nonzeros, to a multiple of 5
  int tiles = 0;        // that the rule takes at once for one token, by the largest record
  DType dtype = DType::f16;
  DType y = DType::f16;
  int64_t tokens = 0;  // their bucket
  Launches launches = Launches::overlapping;

  std::string text() const;  // for files
  auto operator<=>(const TileKey&) const = default;
};

}  // namespace sparsellm::tiled_csl
