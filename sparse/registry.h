#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/format.h"

namespace sparsellm {

// All formats; the first is the dense one.
std::span<const WeightFormat* const> weight_formats();

// Those that keep the values of a weight unless they are told to round them; the first is the dense
// one.
std::vector<const WeightFormat*> exact_formats();

// The candidates of `smallest` (WeightFormat::for_smallest()); the first is the dense one.
std::vector<const WeightFormat*> smallest_formats();

// What stands for formats that depend on what is in a weight: the fastest, by measurement
// (models/format_choice.h) or by rules (sparse/choice/format_rules.h); and that of weight_formats()
// in which it takes the fewest bytes (encode_smallest()).
inline constexpr std::string_view kAutoFormat = "auto";
inline constexpr std::string_view kSmallestFormat = "smallest";

// nullptr for a name that is not among them.
const WeightFormat* find_weight_format(std::string_view name);

// Throws Error that lists the names for one that is not among them.
const WeightFormat& weight_format(std::string_view name);

// "dense, tiled_csl, tca_bme", for messages.
std::string weight_format_names();
std::string exact_format_names();

}  // namespace sparsellm
