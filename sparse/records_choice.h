#pragma once

#include <string_view>

#include "sparse/layout_options.h"

namespace sparsellm {

// What users choose for all weights of a model that come to be in the format tca_bme, whatever the
// others are in: its LayoutOptions::layout, "speed" or "size"; an empty text is speed.

// Throws Error for another text.
void check_records(std::string_view records);

// Whether weights may come to be in tca_bme where this format is named: tca_bme itself, "auto" or
// "smallest".
bool may_be_records(std::string_view format);

// What a weight is encoded with in this format, a name of sparse/registry.h.
LayoutOptions records_in(std::string_view format, std::string_view records);

}  // namespace sparsellm
