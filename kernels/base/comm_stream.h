#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/tensor.h"

namespace sparsellm {

// A piece of a tensor as kernels read and write it that send it to other ranks: the bytes of its
// rows one after the other. What is sent depends on the shape alone, not on strides and addresses,
// which may differ from rank to rank.
struct CommStream {
  std::byte* row = nullptr;  // the first row of which there is something
  int64_t stride = 0;        // bytes between rows
  uint32_t row_bytes = 0;
  uint32_t skip = 0;     // bytes of the first row that come before the piece
  uint32_t bytes = 0;    // of the piece
  uint32_t element = 1;  // 1, 2 or 4 bytes: every address is a multiple of it
  bool vectors = false;  // 16 bytes from a multiple of 16 on are aligned, and in one row
  bool one_row = true;   // of a tensor that is contiguous; then `skip` is 0

  // The bytes from `begin` on, which is a multiple of 16.
  static CommStream of(const Tensor& tensor, int64_t begin, int64_t bytes);
};

}  // namespace sparsellm
