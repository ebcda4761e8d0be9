#pragma once

#include <optional>

#include "sparse/format.h"

namespace sparsellm {

// w [rows, columns] in the format that takes the fewest bytes of all by the formulas of their
// papers. These count the information that a format stores; padding, and layouts that a kernel
// chose for its speed, do not decide. Nothing if w itself has no more bytes than that formula says,
// or than the encoding has. `nonzeros` are those of w.
std::optional<EncodedWeight> encode_smallest(const Tensor& w, int64_t nonzeros,
                                             ThreadPool& threads);

}  // namespace sparsellm
