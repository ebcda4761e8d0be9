#pragma once

#include <string_view>

#include "sparse/format.h"

namespace sparsellm {

// What users choose for all weights of a model that come to be in the format tca_bme, whatever the
// others are in: its LayoutOptions::layout, "speed" or "size", or the type of narrow values, "i8",
// "f8", "i4" or "i4:32"; an empty text is speed. The types that they hold may be chosen of dense_i8
// and dense_i4, too.

// Throws Error for another text.
void check_records(std::string_view records);

// Whether it is a type of narrow values, to which weights are rounded.
bool has_narrow_values(std::string_view records);

// Whether a weight can have what is chosen in this format: narrow values in tca_bme, and those of
// its type in dense_i8 or dense_i4, all else everywhere. Of the dense format: no narrow values.
bool holds_values(std::string_view format, std::string_view records);

// The format itself, or tca_bme for one that is not dense and cannot have what is chosen: which
// weights are sparse is measured with values of 16 bits, and holds for fewer bytes the more.
const WeightFormat& format_with_values(const WeightFormat& format, std::string_view records);

// Whether weights in this format always have narrow values.
bool always_rounds(std::string_view format);

// Whether weights may come to be in tca_bme where this format is named: tca_bme itself, "auto" or
// "smallest".
bool may_be_records(std::string_view format);

// What a weight is encoded with in this format, a name of sparse/registry.h; the type of its values
// if it always rounds, chosen or not.
LayoutOptions records_in(std::string_view format, std::string_view records);

}  // namespace sparsellm
