#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm::tiled_csl {

// What encode_records() makes, the same bytes, in the memory of a CUDA device.
struct DeviceTiles {
  int64_t nonzeros = 0;
  int64_t largest_record = 0;  // bytes
  Buffer starts;
  Buffer records;
};

// Encodes w [rows, columns], f16 or bf16, on the CUDA device of ctx; its rows may be strided. Takes
// 136 bytes for each tile of 128 x 64 besides what it returns; synchronises. Throws Error for more
// bytes of records than starts reach.
DeviceTiles encode_tiles_cuda(const Tensor& w, ExecContext& ctx);

}  // namespace sparsellm::tiled_csl
