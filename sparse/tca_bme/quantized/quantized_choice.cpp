#include "sparse/tca_bme/quantized/quantized_choice.h"

#include <spdlog/fmt/fmt.h>

namespace sparsellm::tca_bme {

std::optional<QuantizedChoice> quantized_choice(std::string_view text) {
  for (const ValueType type : {ValueType::i8, ValueType::f8, ValueType::i4}) {
    if (text == name_of(type)) {
      return QuantizedChoice{.type = type};
    }
  }
  for (const int64_t group : kValueGroups) {
    if (text == fmt::format("{}:{}", name_of(ValueType::i4), group)) {
      return QuantizedChoice{.type = ValueType::i4, .group = group};
    }
  }
  return {};
}

}  // namespace sparsellm::tca_bme
