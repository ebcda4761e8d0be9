#pragma once

#include "kernels/base/buffer.h"

namespace sparsellm {

// The same bytes in memory of their own on the same device, for WeightMatrix::copy().
inline Buffer copy_of(const Buffer& buffer) {
  Buffer copy(buffer.device(), buffer.bytes(), "a copy of an encoded weight");
  copy_bytes(copy.device(), copy.data(), buffer.device(), buffer.data(), buffer.bytes());
  return copy;
}

}  // namespace sparsellm
