#include "kernels/base/error.h"
#include "sparse/tiled_csl/cuda/tile_plan.h"

namespace sparsellm::tiled_csl {
namespace {

constexpr std::string_view kExtract = "extract ";

}  // namespace

std::string to_text(const TilePlan& plan) {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    return sparsellm::to_text(*expansion);
  }
  return fmt::format("{}{}", kExtract, tile_matmul_name(std::get<TileMatmulConfig>(plan)));
}

std::optional<TilePlan> plan_from(std::string_view text, const TileMatrix& matrix, int64_t tokens) {
  if (text.starts_with(kExtract)) {
    return plan_named<TilePlan>(tile_matmul_candidates(matrix, tokens), tile_matmul_name,
                                text.substr(kExtract.size()));
  }
  return expansion_from(text, matrix.rows, matrix.columns, tokens);
}

std::string TileKey::text() const {
  return fmt::format("{} x {}, {} %, {} tiles, {} to {}, {} tokens{}", rows, columns, percent,
                     tiles, name_of(dtype), name_of(y), tokens,
                     launches == Launches::ordinary ? ", ordinary launches" : "");
}

}  // namespace sparsellm::tiled_csl
