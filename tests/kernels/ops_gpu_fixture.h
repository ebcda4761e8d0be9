#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// CUDA ops against their CPU twins on the same values, over odd sizes.
class Ops : public GpuTest {
 protected:
  static constexpr int64_t kTokens[] = {0, 1, 3, 17, 130};
  static constexpr int64_t kFeatures[] = {8, 33, 64, 257, 1000};

  GuardedTensor random_tensor(std::initializer_list<int64_t> sizes, double low = -1.0,
                              double high = 1.0) {
    const Layout layout =
        ++tensors_ % 2 == 0 && sizes.size() == 2 ? Layout::strided : Layout::contiguous;
    return random.tensor(GetParam(), sizes, layout, low, high, kGpu);
  }
  // The residual stream.
  GuardedTensor random_f32(std::initializer_list<int64_t> sizes, double low, double high) {
    const Layout layout = ++tensors_ % 2 == 0 ? Layout::strided : Layout::contiguous;
    return random.tensor(DType::f32, sizes, layout, low, high, kGpu);
  }
  GuardedTensor empty_tensor(std::initializer_list<int64_t> sizes) {
    const Layout layout =
        ++tensors_ % 3 == 0 && sizes.size() == 2 ? Layout::strided : Layout::contiguous;
    return GuardedTensor(GetParam(), sizes, layout, kGpu);
  }
  // Compares with the twin's result; `spread` bounds what rounding errors are in proportion to.
  static void expect_twin(const GuardedTensor& got, const Tensor& twin, double spread,
                          double factor = 16.0) {
    Expected expected{.values = values_of(twin), .magnitudes = {}};
    for (double value : expected.values) {
      expected.magnitudes.push_back(std::abs(value) + spread);
    }
    EXPECT_TRUE(all_close(got.view(), expected, factor));
    EXPECT_TRUE(got.guards_intact());
  }

  Random random{77};

 private:
  int tensors_ = 0;
};

}  // namespace sparsellm::testing
