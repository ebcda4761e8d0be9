#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sparse/tca_bme/record_matmul_cuda.h"

namespace sparsellm {

// What the multistage kernel may take of a device; all 0 if the device cannot run it (it takes
// compute capability 8 or 9). With less shared memory, more thread blocks share a multiprocessor.
struct MultistageDevice {
  int multiprocessors = 0;
  int shared_bytes = 0;  // of a thread block
};
MultistageDevice multistage_device();  // all of the present one

// Whether there is room for a record and its columns of x for 64 tokens: in 64 KiB there is for
// any.
bool record_multistage_fits(const RecordMatrix& matrix, const MultistageDevice& device);

// As record_matmul_cuda(), by copies and barriers that compute capability 8 has
// already; `workspace` and `early` are not needed: the launch begins when the one before it has
// ended. The order of the sums depends on the shape of the matrix and its layout alone, neither on
// the number of tokens nor on the device. Throws Error for what does not fit.
void record_multistage_cuda(const RecordMatrix& matrix, const RecordMatmulOperands& operands,
                            const MultistageDevice& device, cudaStream_t stream);

}  // namespace sparsellm
