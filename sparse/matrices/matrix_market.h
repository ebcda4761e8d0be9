#pragma once

#include "kernels/base/open_directory.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm {

// Reads a .mtx file as f32: the coordinate format of the Matrix Market (Boisvert, Pozo, Remington,
// "The Matrix Market Exchange Formats: Initial Design", NISTIR 5935, 1996).
//   fields      real, integer, pattern (all values are 1)
//   symmetries  general, symmetric (the lower triangle is stored), skew-symmetric (what is below
//               the diagonal is; not with pattern); the result has both triangles
// The banner's words may be in capitals. Lines have at most 1,024 bytes and end with LF or CR LF;
// after the banner blank lines and comments may be anywhere.
//
// Entries of one place are summed in double, in the order of the file, and the sum is rounded to
// f32. Left out is what is 0 then: explicit zeros, sums that cancel out, numbers too small for f32.
//
// Throws Error that names the file and, but for a sum, the line: for anything else that the banner
// may say, counts and indices out of range, upper triangles of symmetric matrices, values that are
// no numbers or too large for f32, sizes above 2^31 - 1, files that end early or go on too long.
// Takes at most 12 times the file's size of memory, and 16 bytes for each row, of which there are
// at most four for each byte of the file, or 2^20.
CompressedRows read_matrix_market(const InputFile& file);

}  // namespace sparsellm
