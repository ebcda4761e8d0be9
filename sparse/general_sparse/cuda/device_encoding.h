#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// An encoding on a CUDA device: its parts (format/layout.h), and what kernels need beside them,
// which is made of its content when it is loaded (slice_matrix.h).
struct DeviceEncoding {
  Layout layout = {};
  DType dtype = DType::f16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  int64_t units = 0;  // of interleave * vector entries
  Buffer starts = {};
  Buffer row_order = {};  // empty if rows are in order
  Buffer positions = {};
  Buffer values = {};
  Buffer border_positions = {};  // empty where nothing needs them
  Buffer share_cuts = {};        // likewise
};

}  // namespace sparsellm::general_sparse
