#pragma once

#include <cstdint>
#include <string_view>

namespace sparsellm {

// An instruction set of the CPU that kernels are written for, chosen when the program runs: the
// program itself is compiled for less. Each includes those before it. Results are the same bits by
// all of them.
enum class CpuIsa : uint8_t {
  portable,      // C++ alone, as the compiler makes it
  avx2,          // AVX2, FMA, F16C
  avx512,        // AVX-512 F, BW, DQ, VL
  avx512_vbmi2,  // and VBMI2 and VPOPCNTDQ, which come together
};

// The last one that this CPU, and the system on it, has.
CpuIsa best_cpu_isa();

std::string_view name_of(CpuIsa isa);  // "avx512_vbmi2"
// What a user asks for: "auto", the best one, or "portable", "avx2", or "avx512", with VBMI2 where
// it is there. Throws Error for anything else, and for what this CPU does not have.
CpuIsa parse_cpu_isa(std::string_view text);

}  // namespace sparsellm
