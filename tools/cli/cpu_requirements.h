#pragma once

// What the code of this build takes for granted; of x86-64 alone.
namespace sparsellm {

// Names of the instruction sets that the compiler was allowed to use, such as "AVX2"; ends with a
// nullptr.
extern const char* const kRequiredCpuFeatures[];
// What was said to it: the -march of the build; empty: nothing.
extern const char kCpuArch[];

}  // namespace sparsellm
