#pragma once

namespace sparsellm {

// Cycles per second of the calling thread's core while it computes, from a chain of 64-bit integer
// multiplications, of which each takes 3 cycles on x86 CPUs (Intel since Nehalem, AMD since Zen).
// Takes some 20 ms, in which a core that was idle comes up to speed. 0 on other CPUs.
double measure_cpu_clock();

}  // namespace sparsellm
