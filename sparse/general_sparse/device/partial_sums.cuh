#pragma once

namespace sparsellm::general_sparse {

// Adds the parts of a row that several thread blocks have, in an order that depends on their number
// alone. A block of `kThreads` threads calls it for `kSums` sums of each part: partial(n) is where
// those of part n are, n < count; store(i, sum) takes the i-th sum. Of the parts of a sum 32
// threads have every 32nd each, and one of them adds what they have.
template <int kThreads, int kSums, class Partial, class Store>
__device__ inline void add_partial_sums(unsigned count, const Partial& partial,
                                        const Store& store) {
  constexpr unsigned kShares = 32;
  constexpr unsigned kAtOnce = kThreads / kShares;  // sums
  __shared__ float share_sums[kThreads];
  const unsigned share = threadIdx.x / kAtOnce;
  for (unsigned first = 0; first < kSums; first += kAtOnce) {
    const unsigned i = first + threadIdx.x % kAtOnce;
    float sum = 0.0f;
    if (i < kSums) {
#pragma unroll 4
      for (unsigned number = share; number < count; number += kShares) {
        sum += partial(number)[i];
      }
    }
    share_sums[threadIdx.x] = sum;
    __syncthreads();
    if (share == 0 && i < kSums) {
      for (unsigned other = 1; other < kShares && other < count; ++other) {
        sum += share_sums[other * kAtOnce + threadIdx.x];
      }
      store(static_cast<int>(i), sum);
    }
    __syncthreads();  // before the next ones are put there
  }
}

}  // namespace sparsellm::general_sparse
