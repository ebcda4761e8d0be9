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
    const QuantizedChoice choice{.type = ValueType::i4, .group = group};
    if (text == text_of(choice)) {
      return choice;
    }
  }
  return {};
}

std::string text_of(const QuantizedChoice& choice) {
  return choice.type == ValueType::i4 ? fmt::format("{}:{}", name_of(choice.type), choice.group)
                                      : std::string(name_of(choice.type));
}

}  // namespace sparsellm::tca_bme
