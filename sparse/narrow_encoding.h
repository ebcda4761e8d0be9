#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/quantize/quantized_matrix.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// A weight whose values were rounded to a narrow type, and what it is stored as.
struct NarrowEncoding {
  QuantizedMatrix values;
  EncodedWeight encoded;
};

// w [rows, columns], f16 or bf16, in host memory, in `format` with the narrow values that it has in
// this layout (WeightFormat::values_in()); what encode() makes with it. Throws Error for a layout
// without narrow values, for a weight that is infinite or NaN, and for one that the format does not
// take.
NarrowEncoding encode_narrow(const Tensor& w, const WeightFormat& format, std::string_view layout,
                             ThreadPool& threads);

bool has_narrow_values(const EncodedWeight& e);

// The codes and scales of some rows of a valid encoding; nothing if it has values of 16 or 32 bits.
std::optional<QuantizedMatrix> narrow_rows(const EncodedWeight& e, Range rows, ThreadPool& threads);

// The type of an encoding's values as --values takes it: "i8", "f8" or "i4:64"; of those that are
// not narrow "f16", "bf16" or "f32". Throws Error for a layout that is not valid.
std::string type_of_values(const EncodedWeight& e);

// How many columns of i4 share a scale with such values, all of a row with i8 and f8; nothing for a
// text that names no narrow type.
struct ScaleGroups {
  bool whole_rows = true;
  int64_t columns = 0;  // else
};
std::optional<ScaleGroups> scale_groups(std::string_view records);

}  // namespace sparsellm
