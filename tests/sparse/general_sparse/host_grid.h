#pragma once

#include <bit>
#include <functional>

// Lets the host compile kernels that call no more of CUDA than this, and runs them: run_grid().
// Shared memory is static memory, which all blocks have in turn.
#define __device__
#define __shared__ static

struct HostIndex {
  unsigned x = 0;
  unsigned y = 0;
};
inline HostIndex threadIdx;
inline HostIndex blockIdx;

namespace sparsellm::testing {

// Calls thread() for each thread of the grid, with threadIdx and blockIdx set. Threads of a block
// take turns at barriers and where lanes of a warp exchange values. A failure of the test: lanes
// that do not all do so, or not the same, and threads that wait for such as have ended.
void run_grid(HostIndex blocks, unsigned threads, const std::function<void()>& thread);

// What the 32 lanes of the thread's warp give, in the order of lanes, when all of them do `what`.
const unsigned* exchange(const char* what, unsigned parameter, unsigned given);
void wait_for_block();

}  // namespace sparsellm::testing

inline void __syncthreads() { sparsellm::testing::wait_for_block(); }

inline float __shfl_xor_sync(unsigned, float x, int bits) {
  const unsigned* const all = sparsellm::testing::exchange("shfl_xor", static_cast<unsigned>(bits),
                                                           std::bit_cast<unsigned>(x));
  return std::bit_cast<float>(all[threadIdx.x % 32 ^ static_cast<unsigned>(bits)]);
}
// What the hardware leaves undefined is NaN.
inline float __shfl_down_sync(unsigned, float x, int distance) {
  const unsigned* const all = sparsellm::testing::exchange(
      "shfl_down", static_cast<unsigned>(distance), std::bit_cast<unsigned>(x));
  const unsigned from = threadIdx.x % 32 + static_cast<unsigned>(distance);
  return std::bit_cast<float>(from < 32 ? all[from] : 0x7fffffffu);
}
inline int __shfl_sync(unsigned, int x, int lane) {
  return static_cast<int>(
      sparsellm::testing::exchange("shfl", 0, static_cast<unsigned>(x))[lane % 32]);
}
inline unsigned __ballot_sync(unsigned, int condition) {
  const unsigned* const all = sparsellm::testing::exchange("ballot", 0, condition != 0 ? 1u : 0u);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    bits |= all[lane] << lane;
  }
  return bits;
}

inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __popc(unsigned x) { return std::popcount(x); }
