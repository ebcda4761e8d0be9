#pragma once

#include <string>
#include <string_view>

#include "kernels/base/device.h"

// One line each of what an encoded weight has to say about a CUDA device (WeightMatrix::notice()).
namespace sparsellm {

// It has a kernel there, whose speed nobody knows.
std::string unmeasured_notice(std::string_view format, Device device);
// It has none.
std::string expansion_notice(std::string_view format, Device device);

}  // namespace sparsellm
