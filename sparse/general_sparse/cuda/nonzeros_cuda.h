#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {

struct RowBits;  // bits/row_bits.h

// What the encoder on a CUDA device knows of a matrix before it writes entries. Functions enqueue
// in the queue of ctx, and allocate; those that return counts of the device wait for it.

// Where a matrix [rows, columns] has nonzeros, a bit for each element.
struct DeviceNonzeros {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_words = 0;
  Buffer words = {};  // scratch
};
// w: f16 or bf16, with elements; rows may be strided.
DeviceNonzeros nonzeros_cuda(const Tensor& w, const ExecContext& ctx);
RowBits row_bits_of(const DeviceNonzeros& m);

// What choose_layout() reads of row_statistics(); the other fields are 0.
RowStatistics row_statistics_cuda(const DeviceNonzeros& m, const ExecContext& ctx);

// Of which starts and row_order are those of the encoding (format/layout.h).
struct DeviceArrangement {
  Layout layout = {};
  int64_t units = 0;
  Buffer starts = {};  // modulo 2^32
  Buffer row_order = {};
};
// For a layout that the rule for speed counts the bytes of (layout_rule.h).
DeviceArrangement arrange_cuda(const DeviceNonzeros& m, const Layout& layout,
                               const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
