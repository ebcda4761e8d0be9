#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "sparse/format.h"

namespace sparsellm {

// w [rows, columns] in that of the formats, and of their layouts (LayoutFor::size), which takes the
// fewest bytes; `records`: that of tca_bme (sparse/records_choice.h), instead of its smallest; with
// narrow values there is no other format. Nothing if none takes fewer than w itself. Two encodings
// at most are in memory at a time.
std::optional<EncodedWeight> encode_smallest(const Tensor& w,
                                             std::span<const WeightFormat* const> formats,
                                             ThreadPool& threads, std::string_view records = {});

}  // namespace sparsellm
