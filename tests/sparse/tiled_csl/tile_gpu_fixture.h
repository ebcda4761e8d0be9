#pragma once

#include <memory>
#include <vector>

#include "sparse/tiled_csl/format/tile_layout.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Products with weights in the format tiled_csl on CUDA, against products in double.
class GpuTileTest : public GpuWeightTest {
 protected:
  struct Product {
    Layout layout = Layout::contiguous;  // of y
    bool has_bias = false;
    Activation::Kind activation = Activation::Kind::none;
  };
  // multiply(y, epilogue): y [tokens, rows] is the expected product + bias, or the greater of that
  // and 0, and nothing else is written.
  template <class Multiply>
  ::testing::AssertionResult gives(int64_t tokens, int64_t rows, const Expected& expected,
                                   const Product& product, Multiply&& multiply) {
    const OwnedTensor bias = bias_of(rows);
    const GuardedTensor y(GetParam(), {tokens, rows}, product.layout, kGpu);
    multiply(y.view(), Epilogue{.bias = product.has_bias ? bias.view : Tensor(),
                                .activation = {.kind = product.activation}});
    gpu->cuda.synchronize();
    if (!y.guards_intact()) {
      return ::testing::AssertionFailure() << "something beside y was written";
    }
    return all_close(
        y.view(),
        with_epilogue(expected, product.has_bias ? values_of(bias.view) : std::vector<double>(),
                      product.activation),
        kTolerance);
  }

  // Full tiles and empty ones between others.
  OwnedTensor uneven_weight(const Shape& shape) {
    OwnedTensor w = weight(shape, 0.15);
    const OwnedTensor full = weight(shape, 1.0);
    auto* const to = static_cast<uint16_t*>(w.view.raw());
    const auto* const from = static_cast<const uint16_t*>(full.view.raw());
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        const int64_t tile = row / tiled_csl::kTileRows * 7 + column / tiled_csl::kTileColumns;
        if (tile % 5 < 2) {
          to[row * shape.columns + column] =
              tile % 5 == 0 ? from[row * shape.columns + column] : uint16_t{0};
        }
      }
    }
    return w;
  }
};

// As they are loaded.
class GpuTiledCsl : public GpuTileTest {
 protected:
  std::unique_ptr<WeightMatrix> load(const Tensor& w) {
    return tiled_csl_format().load(tiled_csl_format().encode(w, cpu.threads), load_context());
  }

  ::testing::AssertionResult is_right(const WeightMatrix& weight, const Tensor& x,
                                      const Expected& expected, const Product& product) {
    return gives(
        x.size(0), weight.out(), expected, product,
        [&](const Tensor& y, const Epilogue& epilogue) { weight.matmul(x, y, epilogue, *exec); });
  }
};

}  // namespace sparsellm::testing
