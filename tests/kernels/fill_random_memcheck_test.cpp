// The CPU and the GPU make the same bits.

#include <utility>

#include "kernels/fill_random.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuFillRandom : public GpuTest {
 protected:
  void expect_same_bits(const RandomFill& fill, int64_t n) {
    SCOPED_TRACE(::testing::Message() << n << " elements, spread " << fill.spread);
    const GuardedTensor expected(GetParam(), {n});
    const GuardedTensor got(GetParam(), {n}, Layout::contiguous, kGpu);
    fill_random(fill, expected.view(), cpu.exec);
    fill_random(fill, got.view(), gpu->exec);
    gpu->cuda.synchronize();
    EXPECT_TRUE(same_bits(got.view(), expected.view()));
    EXPECT_TRUE(got.guards_intact());
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuFillRandom, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuFillRandom, SameBitsAsTheCpu) {
  const RandomFill fills[] = {
      {.key = random_key(1, "model.layers.0.mlp.up_proj.weight"), .spread = 0.0125f},
      {.key = random_key(2, "a"), .spread = 1.7f, .sparsity = 0.8},
      {.key = random_key(3, "b"), .centre = 1.0f, .spread = 0.0f},
      {.key = random_key(4, "c"), .centre = 0.3f, .spread = 0.1f, .sparsity = 0.5},
      {.key = random_key(5, "d"), .spread = 1e-6f},  // subnormal in f16
      {.key = random_key(6, "e"), .sparsity = 1.0},
  };
  for (int64_t n : {0, 1, 3, 255, 256, 257, 10'001}) {
    for (const RandomFill& fill : fills) {
      expect_same_bits(fill, n);
    }
  }
}

TEST_P(GpuFillRandom, SameBitsAsTheCpuWithEveryPattern) {
  for (const char* pattern : {"rows:0", "rows:0.5", "rows:3", "columns:0.5", "outliers:0.01",
                              "outliers:0.2", "dense-blocks:0.01", "dense-blocks:0.2"}) {
    SCOPED_TRACE(pattern);
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1},
                                        {1, 300},
                                        {300, 1},
                                        {64, 128},
                                        {67, 131},
                                        {1030, 4097}}) {
      for (const double sparsity : {0.0, 0.5, 0.8}) {
        expect_same_bits({.key = random_key(11, pattern),
                          .spread = 0.3f,
                          .sparsity = sparsity,
                          .pattern = parse_zero_pattern(pattern).value(),
                          .columns = columns},
                         rows * columns);
      }
    }
    expect_same_bits({.pattern = parse_zero_pattern(pattern).value(), .columns = 3}, 0);
    expect_same_bits(
        {.key = random_key(12, pattern),
         .sparsity = 0.6,
         .pattern = parse_zero_pattern(pattern).value(),
         .columns = 300,
         .part = {.all_rows = 200, .first_row = 70, .first_column = 64, .columns = 129}},
        130 * 129);
  }
}

TEST_P(GpuFillRandom, MoreElementsThanThreads) {
  expect_same_bits({.key = 9, .spread = 0.02f, .sparsity = 0.7}, 5'000'003);
}

}  // namespace
}  // namespace sparsellm
