#pragma once

#include <memory>

#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Weights in the format tiled_csl on CUDA, against the CPU's encodings and a product in double.
class GpuTiledCsl : public GpuWeightTest {
 protected:
  std::unique_ptr<WeightMatrix> load(const Tensor& w) {
    return tiled_csl_format().load(tiled_csl_format().encode(w, cpu.threads), load_context());
  }

  // y = x * w^T + bias, or the greater of that and 0, and nothing else is written.
  struct Product {
    Layout layout = Layout::contiguous;  // of y
    bool has_bias = false;
    Activation::Kind activation = Activation::Kind::none;
  };
  ::testing::AssertionResult is_right(const WeightMatrix& weight, const Tensor& x,
                                      const Expected& expected, const Product& product) {
    const OwnedTensor bias = bias_of(weight.out());
    const GuardedTensor y(GetParam(), {x.size(0), weight.out()}, product.layout, kGpu);
    weight.matmul(x, y.view(),
                  {.bias = product.has_bias ? bias.view : Tensor(),
                   .activation = {.kind = product.activation}},
                  *exec);
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
};

}  // namespace sparsellm::testing
