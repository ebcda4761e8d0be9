#include "sparse/choice/narrow_rules.h"

#include <array>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm {

const WeightFormat& choose_narrow_format(const WeightSize& weight, DType dtype,
                                         std::string_view records) {
  constexpr double kRounding = 1e-9;  // 1 - 0.65 is 0.35, too
  const auto choice = tca_bme::quantized_choice(records);
  require(choice.has_value(), "{} names no type of narrow values", quote(records));
  std::array<const WeightFormat*, 2> formats{&tca_bme_format(), dense_format_with(records)};
  if (1.0 - weight.density < least_zeros_for_bitmaps(choice->type) - kRounding) {
    std::swap(formats[0], formats[1]);
  }
  for (const WeightFormat* format : formats) {
    if (format != nullptr &&
        saves_bytes(*format, weight, dtype, records_in(format->name(), records))) {
      return *format;
    }
  }
  return dense_format();
}

}  // namespace sparsellm
