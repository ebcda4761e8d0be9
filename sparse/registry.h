#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/format.h"

namespace sparsellm {

// All formats; the first is the dense one.
std::span<const WeightFormat* const> weight_formats();

// Those whose weights devices of all kinds multiply by as they are stored; the first is the dense
// one.
std::vector<const WeightFormat*> portable_formats();

// Throws Error that lists the names for one that is not among them.
const WeightFormat& weight_format(std::string_view name);

// "dense, tiled_csl, tca_bme", for messages.
std::string weight_format_names();

}  // namespace sparsellm
