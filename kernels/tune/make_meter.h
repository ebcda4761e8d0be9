#pragma once

#include <memory>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/exec.h"
#include "kernels/tune/tune_meter.h"

namespace sparsellm {

// The meter of a context on a CUDA device (kernels/tune/cuda_meter.cuh), which outlives it. In a
// CPU-only build both throw Error.
std::unique_ptr<TuneMeter> make_cuda_meter(ExecContext& ctx);

// The device_key() of meters of a CUDA device.
std::string cuda_device_key(Device device);

}  // namespace sparsellm
