#pragma once

#include <cuda.h>

#include <cstdint>

namespace sparsellm {

// Rows of 16-bit elements on a device, `stride` elements apart, for copies of boxes of them by the
// tensor memory accelerator of compute capability 9.0.
struct MappedRows {
  const void* data = nullptr;  // aligned to 16 bytes, as every row
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

// The map of boxes of box_rows x 64 elements, whose rows of 128 bytes have that swizzle in shared
// memory: the 16 bytes u of row r lie at u ^ r % 8. What is outside of the tensor is read as zeros
// and not written. Throws Error.
constexpr int kTensorBoxColumns = 64;
CUtensorMap map_rows(const MappedRows& rows, int box_rows);

}  // namespace sparsellm
