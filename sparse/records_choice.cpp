#include "sparse/records_choice.h"

#include <algorithm>
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

const WeightFormat* dense_format_with(std::string_view records) {
  if (!has_narrow_values(records)) {
    return nullptr;
  }
  const std::span<const WeightFormat* const> formats = weight_formats();
  const auto found = std::ranges::find_if(formats, [&](const WeightFormat* format) {
    return always_rounds(format->name()) && holds_values(format->name(), records);
  });
  return found == formats.end() ? nullptr : *found;
}

std::vector<const WeightFormat*> formats_with_values(std::string_view records) {
  std::vector<const WeightFormat*> formats{&tca_bme_format()};
  if (const WeightFormat* const dense = dense_format_with(records)) {
    formats.push_back(dense);
  }
  return formats;
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
