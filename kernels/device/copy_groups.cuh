#pragma once

// Groups of the copies that copy16() (kernels/device/async_copy.cuh) starts, as the PTX ISA has
// them ("cp.async.commit_group", "cp.async.wait_group"), on compute capability 8.0 and above. A
// thread waits for its own copies only.
namespace sparsellm {

inline constexpr int kMaxCopyGroups = 8;  // that wait_for_oldest_copies() tells apart

// The copies that this thread has started since the last call become a group; there may be none.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all copies, in groups or not.
__device__ inline void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Waits until no more than the PENDING latest groups are under way.
template <int PENDING>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits for the oldest of the latest `groups`, at least 1 and at most kMaxCopyGroups.
__device__ inline void wait_for_oldest_copies(int groups) {
  static_assert(kMaxCopyGroups == 8);
  switch (groups) {
    case 1:
      return wait_for_copies<0>();
    case 2:
      return wait_for_copies<1>();
    case 3:
      return wait_for_copies<2>();
    case 4:
      return wait_for_copies<3>();
    case 5:
      return wait_for_copies<4>();
    case 6:
      return wait_for_copies<5>();
    case 7:
      return wait_for_copies<6>();
    default:
      return wait_for_copies<7>();
  }
}

}  // namespace sparsellm
