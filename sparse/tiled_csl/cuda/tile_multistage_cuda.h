#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/exec.h"

namespace sparsellm {

struct TileMatrix;
struct CudaProductOperands;

// What the multistage kernel may take of a CUDA device; all 0 if the device cannot run it (it takes
// compute capability 8.0 and above).
struct TileMultistageDevice {
  int multiprocessors = 0;
  int shared_bytes = 0;  // of a thread block
};
TileMultistageDevice tile_multistage_device(Device device);  // all of it

// Whether matrix.multistage has room for a tile and a piece of a record: in 23 KiB there is for
// any.
bool tile_multistage_fits(const TileMatrix& matrix);

// As tile_matmul_cuda(), by copies and barriers that compute capability 8.0 has already, with a
// launch for every 32 tokens. The order of the sums depends on the shape of the matrix, its largest
// record and the device alone, not on the number of tokens. Throws Error for what does not fit.
void tile_multistage_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                          const ExecContext& ctx);

}  // namespace sparsellm
