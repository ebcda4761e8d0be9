#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "sparse/quantize/cuda/device_quantization.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "sparse/tca_bme/quantized/quantized_layout.h"

namespace sparsellm::tca_bme {

// What is stored of a weight of version 3, in the memory of a CUDA device.
struct DeviceQuantized {
  QuantizedLayout layout;
  int64_t nonzeros = 0;
  RecordSizes sizes;
  Buffer starts;
  Buffer records;
  Buffer scales;  // f32 [rows] of i8 and f8; else empty
};

// What encode_quantized() makes in a format of a matrix that quantize_cuda() made in the context,
// the same bytes. Needs no memory besides what it returns; synchronises. Throws Error for more
// values than starts hold.
DeviceQuantized encode_quantized_cuda(DeviceQuantizedMatrix q, std::string_view format,
                                      ExecContext& ctx);

}  // namespace sparsellm::tca_bme
