#pragma once

#include <cstdint>
#include <vector>

#include "sparse/weight_matrix.h"

namespace sparsellm {

// Tensor parallelism: `degree` ranks, each on a device of its own, share the weights of one model
// (Shoeybi et al., Megatron-LM, 2019, section 3). models/shard.h says what models can be shared,
// models/weights/weight_request.h how a weight may be cut. With one rank every range is the whole.
struct Shard {
  int64_t rank = 0;  // in [0, degree)
  int64_t degree = 1;

  friend bool operator==(const Shard&, const Shard&) = default;
};

// Whole heads, equally many for every rank: the degree divides their number or is a multiple of it.
// Where there are fewer heads than ranks, as of keys and values, consecutive ranks have the same.
Range shared_heads(int64_t heads, const Shard& shard);

// Of anything else that is counted from 0 up to `size`: neurons of an MLP, rows of the vocabulary.
// Shares begin at multiples of 64, where tiles of sparse formats do, and differ by at most 64; each
// element is in exactly one. The last ranks have none if there is too little; rank 0 has some.
inline constexpr int64_t kShareStep = 64;
Range shared_elements(int64_t size, const Shard& shard);

// Where the shares of all ranks in `size` elements begin, and where the last one ends:
// [degree + 1].
std::vector<int64_t> share_borders(int64_t size, int64_t degree);

}  // namespace sparsellm
