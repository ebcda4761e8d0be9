#pragma once

#include <cstdint>

// How a thread block tells others of its launch that what it wrote to global memory is there: a
// word that is 0 before (PTX ISA, "ld.acquire", "st.release").
namespace sparsellm {

// By one thread, after it has met those of the block that wrote: the release is cumulative (PTX
// ISA, "Memory Consistency Model"), so they need no fence of their own.
__device__ inline void set_arrived(uint32_t* arrival) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(arrival) : "memory");
}
__device__ inline void wait_arrived(const uint32_t* arrival) {
  uint32_t value = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(arrival) : "memory");
  } while (value == 0);
}

}  // namespace sparsellm
