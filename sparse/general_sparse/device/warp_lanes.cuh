#pragma once

namespace sparsellm::general_sparse {

// What the lanes of a warp do together, for reductions.cuh: all of them call it. Groups are of `G`
// adjacent lanes. A variable of a lane is a register; tests have a class of these functions whose
// variables have a value for each lane, on the host. Blocks have one dimension.
template <int G>
struct WarpLanes {
  static constexpr int kGroups = 32 / G;
  using Float = float;

  static __device__ int group() { return static_cast<int>(threadIdx.x) % 32 / G; }
  static __device__ bool in_group_with(int bit) { return (group() & bit) != 0; }
  // How far the first bit is that is set, from the lane's group on: 1 for the group's own bit, 0 if
  // there is none.
  static __device__ int distance_to(unsigned bits) {
    return __ffs(static_cast<int>(bits >> group()));
  }
  // x of the group that comes `distance` later; anything where there is none.
  static __device__ float from_later(float x, int distance) {
    return __shfl_down_sync(0xffffffffu, x, distance * G);
  }
  // x of the group whose number differs in this bit.
  static __device__ float exchange(float x, int bit) {
    return __shfl_xor_sync(0xffffffffu, x, bit * G);
  }
  // A bit for each group: all lanes of a group have the same condition.
  static __device__ unsigned ballot(bool condition) {
    const int lane = static_cast<int>(threadIdx.x) % kGroups * G;
    const int of_group = __shfl_sync(0xffffffffu, condition ? 1 : 0, lane);
    return __ballot_sync(0xffffffffu, of_group) & 0xffffffffu >> (32 - kGroups);
  }
  static __device__ float select(bool condition, float a, float b) { return condition ? a : b; }
};

}  // namespace sparsellm::general_sparse
