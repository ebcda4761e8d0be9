#pragma once

#include <string>
#include <string_view>

#include "kernels/base/device.h"

// One line each of what an encoded weight has to say about a CUDA device (WeightMatrix::notice()).
namespace sparsellm {

// The device has a kernel for the format, but its speed was never measured there.
std::string unmeasured_notice(std::string_view format, Device device);
// The device has no kernel for the format: weights are expanded.
std::string expansion_notice(std::string_view format, Device device);

}  // namespace sparsellm
