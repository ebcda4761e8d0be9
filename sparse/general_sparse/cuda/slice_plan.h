#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/general_sparse/format/parts.h"

namespace sparsellm::general_sparse {

// Offsets that the kernels of slice_product.cuh need, made of an encoding's content when it is
// loaded (the paper's offset arrays).

// How many equal shares cuts are made for: fewer ones are some of these together.
int share_cut_count(int multiprocessors);
// SliceMatrix::share_cuts. Equal shares are of entries, and a little for each slice.
std::vector<uint32_t> share_cuts(const ChunkGrid& grid, std::span<const uint32_t> starts,
                                 int count);
inline std::vector<uint32_t> share_cuts(const Parts& parts, int count) {
  return share_cuts(parts.grid, parts.starts, count);
}

// SliceMatrix::border_positions of an encoding of differences.
std::vector<uint16_t> border_positions(const Parts& parts, ThreadPool& threads);

}  // namespace sparsellm::general_sparse
