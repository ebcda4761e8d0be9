#pragma once

#include <cstdint>

namespace sparsellm::general_sparse {

// B and C of a product C = A * B on a CUDA device, both of the dtype of A. Row k of B begins at
// k * b_stride, unless what takes them says otherwise, with its tokens side by side; the element of
// C in row m and of token t is that at m * c_row + t * c_token. C does not overlap B.
struct DenseOperands {
  const void* b = nullptr;
  int64_t b_stride = 0;
  void* c = nullptr;
  int64_t c_row = 0;
  int64_t c_token = 0;
  int64_t tokens = 0;
};

}  // namespace sparsellm::general_sparse
