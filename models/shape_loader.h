#pragma once

#include <cstdint>

#include "models/weight_loader.h"

namespace sparsellm {

// Weights without memory, for a decoder that is asked what it needs and never run: loaded_bytes(),
// and the decoder's kv_shape() and workspace_bytes(). The device need not be there.
class ShapeLoader : public WeightLoader {
 public:
  // `dtype` is that of all weights; on CUDA also what the model computes in. Throws Error for one
  // that the device does not compute in.
  ShapeLoader(Device device, DType dtype);

  OwnedTensor constants(std::string_view what, std::span<const float> values) override;
  void reserve(int64_t) override {}

 private:
  OwnedTensor load(const Wanted& wanted) override;

  DType dtype_;
};

}  // namespace sparsellm
