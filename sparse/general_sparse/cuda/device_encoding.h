#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"
#include "sparse/general_sparse/cuda/row_pieces.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// An encoding on a CUDA device: its parts (format/layout.h), and what kernels need beside them,
// which is made of its content when it is loaded.
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
  // Of interleaved encodings (slice_matrix.h); empty where nothing needs them.
  Buffer border_positions = {};
  Buffer schedules = {};
  // Of others (row_matrix.h), likewise.
  RowCounts row_counts = {};
  Buffer row_pieces = {};  // those of blocks, then those of warps
  Buffer split_rows = {};

  int64_t bytes() const;
  // In memory of its own on the same device.
  DeviceEncoding copied() const;
};

// On return the device has the bytes.
Buffer to_device(std::span<const std::byte> bytes, const Device& device);

}  // namespace sparsellm::general_sparse
