#pragma once

// Programmatic dependent launch (PDL; PTX ISA, "griddepcontrol"): the next kernel in a queue begins
// while this one still runs, as far as it needs nothing of it. Architectures before 9.0 have no
// such instructions, nor kernels that are launched so (CudaContext::State::has_pdl).
namespace sparsellm {

// A kernel that is launched with LaunchShape::pdl may begin from here on; it waits for the results
// of this one by itself.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the results of the kernels before. Each block of a kernel that is launched with
// LaunchShape::pdl does so, whatever it has to do, before it writes anything or reads what they
// write: who waits for one kernel of a chain has then waited for all before it.
__device__ inline void wait_on_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace sparsellm
