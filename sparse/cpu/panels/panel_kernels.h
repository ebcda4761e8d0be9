#pragma once

#include <cstdint>

// The kernels of panels (sparse/cpu/panels/panels.h). Their files are compiled for instruction sets
// that not every CPU has, and the linker may take any file's copy of an inline function for the
// whole program: this header has none, and neither do those that the files include besides it.
namespace sparsellm::panels {

// A panel is 64 rows, whose values stand column by column: of each column a mask of the rows that
// have one, and the values of the lowest bit first. The masks of 64 columns (or of those that are
// left) stand before the values of these. Masks are u64, values f16 or bf16, all of them little
// endian and one after the other.
inline constexpr int64_t kRows = 64;
inline constexpr int64_t kGroupColumns = 64;
// That are read, but not used, after the last value of the last panel.
inline constexpr int64_t kPaddingBytes = 64;

// Bit b of a mask is row b for f16. For bf16 it is row kPairedRows[b]: row i and row i + 16 are the
// halves of a 32-bit word then, which a shift and a mask turn into two f32.
inline constexpr uint8_t kPairedRows[kRows] = {
    0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
    11, 27, 12, 28, 13, 29, 14, 30, 15, 31, 32, 48, 33, 49, 34, 50, 35, 51, 36, 52, 37, 53,
    38, 54, 39, 55, 40, 56, 41, 57, 42, 58, 43, 59, 44, 60, 45, 61, 46, 62, 47, 63};

// sums f32 [tokens][64] = the rows of the panel times x, for x f32 [columns][tokens]. A sum is one
// chain of fused multiply-adds over all columns in their order, from 0 on, with 0 where there is
// no value: the same bits by every kernel and with any number of tokens, and as in a dense product
// an infinity or a NaN in x reaches all rows.
using Multiply = void (*)(const uint8_t* panel, int64_t columns, const float* x, int64_t tokens,
                          float* sums);

struct Kernels {
  Multiply f16;
  Multiply bf16;
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;       // F, BW, DQ and VL
extern const Kernels kAvx512Vbmi2Kernels;  // VBMI2 as well

}  // namespace sparsellm::panels
