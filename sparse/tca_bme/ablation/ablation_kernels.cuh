#pragma once

#include "sparse/tca_bme/ablation/ablation.h"
#include "sparse/tca_bme/cuda/record_encode_cuda.h"
#include "sparse/tca_bme/cuda/record_launch.cuh"

namespace sparsellm::tca_bme {

// The kernels of tca_bme with a stage replaced or erased: paper_decode, which takes what
// encode_records_as_paper() makes, no_decode or stream_only. For f16 and up to kMaxAblationTokens.
RecordKernelFor ablation_kernels(Ablation ablation);

// w [out, in] in records of this many chunks, 4 or 8, with a bit for each element, of the size that
// tca_bme gives them, but inside in the order of SpInfer's format (Fan et al. 2025, section 4.2):
//   masks    chunk after chunk, tile of 16 x 16 after tile: u64 [4], the bitmaps of 8 x 8 elements
//            in the order of the registers of A, rows first
//   offsets  of each chunk the first one: where its values begin; the others have no meaning
//   values   bitmap after bitmap, the nonzeros in the order of its bits
// f16, contiguous. Synchronises.
DeviceRecords encode_records_as_paper(const Tensor& w, int32_t chunks, ExecContext& ctx);

}  // namespace sparsellm::tca_bme
