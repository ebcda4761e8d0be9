#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm::tca_bme {

// Which narrow values a matrix is encoded with, by the texts "i8", "f8", "i4", and "i4:32", "i4:64"
// and "i4:128", which say how many columns share a scale.
struct QuantizedChoice {
  ValueType type = ValueType::i8;
  int64_t group = kDefaultValueGroup;  // of i4
};
std::optional<QuantizedChoice> quantized_choice(std::string_view text);  // nothing for another text
// "i8", "f8", or "i4:128" with the group.
std::string text_of(const QuantizedChoice& choice);

}  // namespace sparsellm::tca_bme
