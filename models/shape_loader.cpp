#include "models/shape_loader.h"

namespace sparsellm {

ShapeLoader::ShapeLoader(Device device, DType dtype)
    : WeightLoader(device, device.is_cuda() ? dtype : DType::f32), dtype_(dtype) {}

OwnedTensor ShapeLoader::constants(std::string_view, std::span<const float> values) {
  return {.buffer = {}, .view = Tensor(nullptr, DType::f32, {std::ssize(values)}, device())};
}

OwnedTensor ShapeLoader::load(const Wanted& wanted) {
  const int64_t rows = rows_of(wanted);
  return {.buffer = {},
          .view = wanted.kind == Wanted::Kind::vector
                      ? Tensor(nullptr, dtype_, {rows}, device())
                      : Tensor(nullptr, dtype_, {rows, wanted.columns}, device())};
}

}  // namespace sparsellm
