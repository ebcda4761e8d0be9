#pragma once

#include "kernels/device/async_copy.cuh"

namespace sparsellm::tca_bme {

constexpr int kPrefetchedRows = 32;  // up to 128 bytes

// To the L2 what stores need of kPrefetchedRows rows from `row`, a multiple of as many, on: scales
// and bias. They would come from the memory after the last sum, with all of its latency.
template <class T, class Parameters>
__device__ inline void prefetch_rows(const Parameters& p, int row) {
  if (row >= p.rows) {
    return;
  }
  if (p.scales != nullptr) {
    prefetch(p.scales + row);
  }
  if (p.bias != nullptr) {
    prefetch(static_cast<const T*>(p.bias) + row);
  }
}

}  // namespace sparsellm::tca_bme
