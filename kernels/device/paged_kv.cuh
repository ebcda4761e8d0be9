#pragma once

#include "kernels/paged_kv.h"

namespace sparsellm {

// The request that a row belongs to. query_start [requests + 1] is ascending.
__device__ inline int request_of(const int* query_start, int requests, int row) {
  int low = 0;
  int high = requests;  // query_start[low] <= row < query_start[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (query_start[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace sparsellm
