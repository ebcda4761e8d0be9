#pragma once

#include <cstdint>

#include "sparse/encoded_weight.h"

namespace sparsellm::testing {

// What loading onto a GPU checks of an encoding in tca_bme version 2 or 3, without one: the header,
// and then the records in pieces of at most `most_bytes`, copied to memory of their own, in an
// order that `seed` says. Throws Error for an encoding that must not get there. Returns whether the
// copies are all of the records, each byte once.
bool check_in_pieces(const EncodedWeight& e, int64_t most_bytes, uint64_t seed);

}  // namespace sparsellm::testing
