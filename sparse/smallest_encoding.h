#pragma once

#include <optional>

#include "sparse/format.h"

namespace sparsellm {

// The encoding of w [rows, columns] with the fewest bytes among all formats that take it; nothing
// if none is smaller than the matrix itself. `nonzeros` are those of w.
std::optional<EncodedWeight> encode_smallest(const Tensor& w, int64_t nonzeros,
                                             ThreadPool& threads);

}  // namespace sparsellm
