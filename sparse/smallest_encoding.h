#pragma once

#include <optional>
#include <span>

#include "sparse/format.h"

namespace sparsellm {

// w [rows, columns] in that of the formats, and of their layouts (LayoutFor::size), which takes the
// fewest bytes. Nothing if none takes fewer than w itself. Two encodings at most are in memory at a
// time.
std::optional<EncodedWeight> encode_smallest(const Tensor& w,
                                             std::span<const WeightFormat* const> formats,
                                             ThreadPool& threads);

}  // namespace sparsellm
