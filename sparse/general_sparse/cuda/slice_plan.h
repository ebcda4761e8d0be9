#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/general_sparse/format/parts.h"

namespace sparsellm::general_sparse {

// Offsets that the kernels of slice_product.cuh need, made of an encoding's content when it is
// loaded (the paper's offset arrays).

// How many equal shares cuts are made for: fewer ones are some of these together.
int share_cut_count(int multiprocessors);
// SliceMatrix::share_cuts. A share is of entries, and a little for each slice.
std::vector<uint32_t> share_cuts(const Parts& parts, int count);

// SliceMatrix::most_parts: the fewer slices a device has for its warps, the more of these share
// one.
int most_parts(int64_t slices, int multiprocessors);
// SliceMatrix::border_positions of an encoding of differences.
std::vector<uint16_t> border_positions(const Parts& parts, int most_parts, ThreadPool& threads);

}  // namespace sparsellm::general_sparse
