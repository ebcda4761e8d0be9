#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/sparse/tca_bme/tca_bme_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuTcaBme, ProductsOfAllPatterns) {
  constexpr int64_t kTokens[] = {1, 3, 8, 17, 33, 64, 65, 100, 130, 300};
  for (const Shape& shape :
       {Shape{1, 1}, Shape{16, 16}, Shape{64, 64}, Shape{127, 65}, Shape{256, 768}, {520, 130}}) {
    const GuardedTensor x = numbers(300, shape.columns);
    const GuardedTensor strided = numbers(300, shape.columns, Layout::strided);
    const OwnedTensor bias = bias_of(shape.rows);
    const std::vector<double> bias_values = values_of(bias.view);
    size_t number = 0;
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.1, 0.3, 0.5, 1.0}) {
        SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}", shape.rows, shape.columns, density,
                                 name_of(pattern)));
        const OwnedTensor w = weight(shape, density, pattern);
        ++number;
        const std::unique_ptr<WeightMatrix> loaded =
            load(w.view, number % 2 == 0 ? LayoutFor::size : LayoutFor::speed);
        const Tensor& all_x = number % 2 == 0 ? strided.view() : x.view();
        const Expected all = expected_of(all_x, w.view);
        for (int64_t tokens : kTokens) {
          ++number;
          const Layout layout = number % 3 == 0 ? Layout::strided : Layout::contiguous;
          SCOPED_TRACE(fmt::format("{} tokens", tokens));
          // For many tokens there may be another rounding before the bias, and a NaN may pass.
          const bool one_rounding = tokens <= 64;
          const bool has_bias = one_rounding && number % 4 < 2;
          const Activation activation{.kind = one_rounding && number % 5 == 0
                                                  ? Activation::Kind::relu
                                                  : Activation::Kind::none};
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, layout, kGpu);
          loaded->matmul(all_x.rows(0, tokens), y.view(),
                         {.bias = has_bias ? bias.view : Tensor(), .activation = activation},
                         *exec);
          gpu->cuda.synchronize();
          ASSERT_TRUE(all_close(
              y.view(),
              with_epilogue(first_rows(all, tokens, shape.rows),
                            has_bias ? bias_values : std::vector<double>(), activation.kind),
              kTolerance));
          ASSERT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

TEST_P(GpuTcaBme, ExpandsAnyRows) {
  for (const Shape& shape : {Shape{1, 1}, Shape{64, 64}, Shape{127, 65}, Shape{600, 136},
                             Shape{1100, 130}, Shape{65, 40}}) {
    for (double density : {0.0, 0.01, 0.1, 0.2, 0.4, 0.6, 1.0}) {
      const OwnedTensor w = weight(shape, density, Pattern::negative_zeros);
      const std::unique_ptr<WeightMatrix> loaded = load(w.view);
      clear_negative_zeros(w.view);
      for (const Range& range :
           {Range{0, shape.rows}, Range{shape.rows - 1, 1}, Range{shape.rows, 0}, Range{3, 11},
            Range{61, 66}, Range{63, 2}, Range{500, 100}, Range{512, 512}}) {
        if (range.begin + range.count > shape.rows) {
          continue;
        }
        const GuardedTensor dense(GetParam(), {range.count, shape.columns}, Layout::contiguous,
                                  kGpu);
        loaded->expand(range, dense.view(), *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(dense.view(), w.view.rows(range.begin, range.count)))
            << fmt::format("[{}, {}], density {}: {} rows from {}", shape.rows, shape.columns,
                           density, range.count, range.begin);
        EXPECT_TRUE(dense.guards_intact());
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
