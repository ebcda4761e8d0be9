#pragma once

#include <cstdint>

namespace sparsellm {

// The stages of shared memory, in turn. `parity` is that of the phase of a stage's barrier that the
// thread waits for next: 0 at first for what fills a stage, 1 for what empties it, since a stage is
// empty before its first use (PTX ISA, "mbarrier.try_wait").
struct Ring {
  int stages;
  uint32_t parity;
  int stage = 0;

  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace sparsellm
