#include <cstdint>
#include <memory>
#include <string>

#include "tests/sparse/tiled_csl/tile_encode_gpu_fixture.h"
#include "tests/sparse/uneven_weights.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuTileEncoderCases : public GpuTileEncoder {};

TEST_P(GpuTileEncoderCases, UnevenWeights) {
  constexpr uint64_t kWeights = 1000;
  constexpr Placement kPlacements[] = {kContiguous, kStrided, kUnaligned};
  for (uint64_t seed = 0; seed < kWeights; ++seed) {
    const OwnedTensor w = uneven_weight(seed);
    if (w.view.dtype() == GetParam()) {
      ASSERT_TRUE(encodes_as_the_cpu(w.view, kPlacements[seed % 3])) << "seed " << seed;
    }
  }
}

// More tiles than a launch runs at a time.
TEST_P(GpuTileEncoderCases, LargeWeights) {
  for (double density : {0.5, 0.1}) {
    EXPECT_TRUE(encodes_as_the_cpu(weight({9000, 5001}, density).view, kContiguous)) << density;
  }
}

TEST_P(GpuTileEncoderCases, AnEncodingMadeOnTheDeviceMultiplies) {
  const Shape shape{700, 520};
  for (double density : {0.4, 0.05}) {
    const OwnedTensor w = weight(shape, density);
    const OwnedTensor on_gpu = allocate_tensor(kGpu, GetParam(), {shape.rows, shape.columns}, "w");
    copy_bytes(kGpu, on_gpu.view.raw(), {}, w.view.raw(), w.view.bytes());
    const std::unique_ptr<WeightMatrix> made =
        tiled_csl_format().encode_on_device(on_gpu.view, load_context());
    const std::unique_ptr<WeightMatrix> loaded =
        tiled_csl_format().load(tiled_csl_format().encode(w.view, cpu.threads), load_context());
    const std::unique_ptr<WeightMatrix> copied = made->copy();
    EXPECT_EQ(made->bytes(), loaded->bytes());
    EXPECT_EQ(made->nonzeros(), loaded->nonzeros());
    EXPECT_EQ(copied->nonzeros(), loaded->nonzeros());
    for (int64_t tokens : {1, 9, 40, 130}) {
      const GuardedTensor x = numbers(tokens, shape.columns);
      const GuardedTensor expected(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view(), expected.view(), {}, *exec);
      for (const WeightMatrix* weight : {made.get(), copied.get()}) {
        EXPECT_EQ(weight->plan_text(GetParam(), tokens, *exec),
                  loaded->plan_text(GetParam(), tokens, *exec));
        const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
        weight->matmul(x.view(), y.view(), {}, *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(y.view(), expected.view())) << tokens << " tokens";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuTileEncoderCases, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace sparsellm
