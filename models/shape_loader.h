#pragma once

#include <cstdint>
#include <memory>

#include "models/weight_loader.h"
#include "models/weight_store.h"

namespace sparsellm {

// Weights without memory, for a decoder that is asked what it needs and never run: loaded_bytes(),
// and the decoder's kv_shape() and workspace_bytes(). The device need not be there.
class ShapeLoader : public WeightLoader {
 public:
  // `dtype` is that of all weights; on CUDA also what the model computes in. With a store, linear
  // layers that it has in a sparse format count with what they take there (joined ones may come to
  // some bytes less). Throws Error for a dtype that the device does not compute in.
  ShapeLoader(Device device, DType dtype, const WeightStore* store = nullptr);

  OwnedTensor constants(std::string_view what, std::span<const float> values) override;
  void reserve(int64_t) override {}

 protected:
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override;

 private:
  OwnedTensor load(const Wanted& wanted) override;

  DType dtype_;
  const WeightStore* store_;
};

}  // namespace sparsellm
