#include "sparse/records_choice.h"

#include <string>

#include "sparse/dense/dense.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm {

void check_records(std::string_view records) { tca_bme_format().check_layout(records); }

bool has_narrow_values(std::string_view records) {
  return tca_bme::quantized_choice(records).has_value();
}

bool holds_values(std::string_view format, std::string_view records) {
  const WeightFormat* const known = find_weight_format(format);
  return !has_narrow_values(records) || (known != nullptr && known->values_in(records) == records);
}

const WeightFormat& format_with_values(const WeightFormat& format, std::string_view records) {
  return &format == &dense_format() || holds_values(format.name(), records) ? format
                                                                            : tca_bme_format();
}

bool always_rounds(std::string_view format) {
  const WeightFormat* const known = find_weight_format(format);
  return known != nullptr && !known->values_in({}).empty();
}

bool may_be_records(std::string_view format) {
  return format == tca_bme_format().name() || format == kAutoFormat || format == kSmallestFormat;
}

LayoutOptions records_in(std::string_view format, std::string_view records) {
  if (format == tca_bme_format().name()) {
    return {.layout = std::string(records)};
  }
  const WeightFormat* const known = find_weight_format(format);
  return {.layout = known == nullptr ? std::string() : known->values_in(records)};
}

}  // namespace sparsellm
