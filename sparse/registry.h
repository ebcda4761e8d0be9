#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/format.h"

namespace sparsellm {

// All formats; the first is the dense one.
std::span<const WeightFormat* const> weight_formats();

// Those that `auto` chooses from (WeightFormat::for_auto()); the first is the dense one.
std::vector<const WeightFormat*> auto_formats();

// Throws Error that lists the names for one that is not among them.
const WeightFormat& weight_format(std::string_view name);

// "dense, tiled_csl, tca_bme", for messages.
std::string weight_format_names();

}  // namespace sparsellm
