#pragma once

#include <cstddef>
#include <cstdint>

// What a CPU has. It is asked before the rest of a program runs, by code for any CPU of the kind:
// nothing here may call an inline function of a header, of which the linker could take another
// file's copy. x86-64 alone; elsewhere a CPU has nothing.
namespace sparsellm {

// Words of the CPU's own description, by the instructions cpuid and xgetbv.
struct CpuWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_ecx = 0;
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_1_eax = 0;
  uint32_t extended1_ecx = 0;
  uint32_t xcr0 = 0;  // registers that the operating system saves; 0 if it saves none
};

// Of the CPU that runs this.
CpuWords read_cpu_words();

// Writes into `text`, which has `size` bytes, the names of those that are missing, "AVX2, FMA" and
// a zero after them, as many as fit; returns how many are missing. A name that is not known counts
// as missing.
int missing_cpu_features(const char* const* required, const CpuWords& cpu, char* text, size_t size);

}  // namespace sparsellm
