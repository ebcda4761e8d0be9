#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/overlapping_chain_gpu_fixture.h"

namespace sparsellm::testing {

// Decode rows by one op, step after step, as in a layer: their q, k and v come from a kernel that
// itself waits long and lets the next begin at once, where NaN was before. Slots without a token
// hold NaN too.
class AppendingRows : public OverlappingChain {
 protected:
  struct AppendingCase {
    Heads heads;
    bool rotates = false;
    std::vector<int64_t> lengths;
    int64_t steps = 0;
    bool norms = false;
    int64_t window = 0;  // pages before it are out of range
  };

  void expect_same_as_two_ops(const AppendingCase& c);
};

}  // namespace sparsellm::testing
