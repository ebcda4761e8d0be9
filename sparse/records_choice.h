#pragma once

#include <string_view>
#include <vector>

#include "sparse/format.h"

namespace sparsellm {

// What users choose for all weights of a model that come to be in the format tca_bme, whatever the
// others are in: its LayoutOptions::layout, "speed" or "size", or the type of narrow values, "i8",
// "f8", "i4" or "i4:32"; an empty text is speed. Weights with narrow values may come to be in the
// dense formats of them, dense_i8 and dense_i4, too.

// Throws Error for another text.
void check_records(std::string_view records);

// Whether it is a type of narrow values, to which weights are rounded.
bool has_narrow_values(std::string_view records);

// Whether the format can store a weight with these records. Narrow values: tca_bme all types,
// dense_i8 and dense_i4 their own, no other format any. All else: every format.
bool holds_values(std::string_view format, std::string_view records);

// The format itself if it is dense or holds_values(), else tca_bme. Which weights are worth a
// sparse format was measured with 16-bit values; with narrow ones more of them are.
const WeightFormat& format_with_values(const WeightFormat& format, std::string_view records);

// Whether weights in this format always have narrow values.
bool always_rounds(std::string_view format);

// The format that always_rounds() to exactly these narrow values: dense_i8 of "i8", dense_i4 of
// "i4" and of others with scales of as many columns. nullptr: there is none, as of "f8" and of
// records without narrow values.
const WeightFormat* dense_format_with(std::string_view records);

// All formats that hold these narrow values: tca_bme and, if there is one, dense_format_with().
std::vector<const WeightFormat*> formats_with_values(std::string_view records);

// Whether weights may come to be in tca_bme where this format is named: tca_bme itself, "auto" or
// "smallest".
bool may_be_records(std::string_view format);

// What a weight is encoded with in this format, a name of sparse/registry.h; the type of its values
// if it always rounds, chosen or not.
LayoutOptions records_in(std::string_view format, std::string_view records);

}  // namespace sparsellm
