#pragma once

#include <optional>
#include <span>

#include "sparse/encoded_weight.h"
#include "sparse/format.h"

namespace sparsellm::tiled_csl {

// WeightFormat::slice() and concat_rows() for valid encodings of either version, whose tiles are
// copied as they are: in whole tiles, or up to the end of the matrix, and where every part but the
// last is made of whole tiles.
std::optional<EncodedWeight> slice_tiles(const EncodedWeight& e, Axis axis, Range range);
std::optional<EncodedWeight> concat_rows_of_tiles(std::span<const EncodedWeight* const> parts);

}  // namespace sparsellm::tiled_csl
