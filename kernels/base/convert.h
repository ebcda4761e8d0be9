#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/dtype.h"

namespace sparsellm {

// Copies `count` numbers and converts them from one floating dtype to another, rounded to nearest
// even; a NaN stays a NaN. The two places need not be aligned and do not overlap. Returns a finite
// number that became infinite, if there is one.
std::optional<float> convert(DType from, const std::byte* source, DType to, std::byte* destination,
                             int64_t count);

// How many finite numbers become infinite in that.
int64_t count_overflows(DType from, const std::byte* source, DType to, int64_t count);

}  // namespace sparsellm
