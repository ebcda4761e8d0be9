#include "sparse/narrow_encoding.h"

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/quantize/quantize.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm {

bool has_narrow_values(const EncodedWeight& e) { return tca_bme::has_quantized_records(e); }

NarrowEncoding encode_narrow(const Tensor& w, const WeightFormat& format, std::string_view layout,
                             ThreadPool& threads) {
  const auto choice = tca_bme::quantized_choice(format.values_in(layout));
  require(choice.has_value(), "{} names no type of narrow values", quote(layout));
  const std::string reason = format.why_not(w);
  require(reason.empty(), "{}", reason);
  NarrowEncoding result{.values = quantize(w, choice->type, choice->group, threads), .encoded = {}};
  result.encoded = tca_bme::encode_quantized(result.values, format.name(), w.dtype(), threads);
  return result;
}

std::optional<QuantizedMatrix> narrow_rows(const EncodedWeight& e, Range rows,
                                           ThreadPool& threads) {
  return has_narrow_values(e)
             ? std::optional(tca_bme::quantized_rows(tca_bme::QuantizedParts(e), rows, threads))
             : std::nullopt;
}

std::string type_of_values(const EncodedWeight& e) {
  if (!has_narrow_values(e)) {
    return std::string(name_of(e.dtype));
  }
  const tca_bme::QuantizedLayout layout = tca_bme::read_quantized_layout(e);
  return tca_bme::text_of({.type = tca_bme::type_of(layout.values), .group = layout.group});
}

std::optional<ScaleGroups> scale_groups(std::string_view records) {
  const auto choice = tca_bme::quantized_choice(records);
  if (!choice) {
    return std::nullopt;
  }
  return choice->type == ValueType::i4 ? ScaleGroups{.whole_rows = false, .columns = choice->group}
                                       : ScaleGroups();
}

}  // namespace sparsellm
