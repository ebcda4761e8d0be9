#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/error.h"
#include "tests/sparse/tiled_csl/tile_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GpuTiledCslMultistage, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuTiledCslMultistage, ProductsOfAllDensities) {
  constexpr int64_t kTokens[] = {1, 3, 8, 9, 16, 17, 32, 33, 57, 64, 65, 130};
  constexpr int64_t kMaxTokens = 130;
  size_t number = 0;
  for (const Shape& shape : {Shape{1024, 520}, Shape{1022, 777}}) {
    const GuardedTensor contiguous = numbers(kMaxTokens, shape.columns);
    const GuardedTensor strided = numbers(kMaxTokens, shape.columns, Layout::strided);
    // Rows aligned to 16 bytes, with NaN beside them.
    const GuardedTensor wide(GetParam(), {kMaxTokens, (shape.columns + 23) / 8 * 8},
                             Layout::contiguous, kGpu);
    const Tensor inner = wide.view().columns(8, shape.columns);
    set_values(inner, values(kMaxTokens * shape.columns));
    for (double density : {0.0, 0.01, 0.1, 0.3, 0.5, 1.0}) {
      const OwnedTensor w = weight(shape, density);
      const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
      for (const Tensor& x : {contiguous.view(), strided.view(), inner}) {
        const Expected all = expected_of(x, w.view);
        for (int64_t tokens : kTokens) {
          ++number;
          const TileMatrix matrix = loaded.on(devices[number % devices.size()]);
          ASSERT_TRUE(tile_multistage_fits(matrix));
          ASSERT_TRUE(is_right(
              matrix, x.rows(0, tokens), first_rows(all, tokens, shape.rows),
              {.layout = number % 7 < 2 ? Layout::strided : Layout::contiguous,
               .has_bias = number % 4 < 2,
               .activation = number % 5 == 0 ? Activation::Kind::relu : Activation::Kind::none}))
              << fmt::format("[{}, {}], density {}, {} tokens, {} bytes of shared memory",
                             shape.rows, shape.columns, density, tokens,
                             matrix.multistage.shared_bytes);
        }
      }
    }
  }
}

// Shapes, densities, patterns, tokens and layouts at random.
TEST_P(GpuTiledCslMultistage, RandomCases) {
  constexpr int kWeights = 300;
  constexpr int kProducts = 5;  // of each
  Random cases(32);
  for (int i = 0; i < kWeights; ++i) {
    const Shape shape{1 + cases.below(cases.below(4) == 0 ? 1000 : 300),
                      1 + cases.below(cases.below(4) == 0 ? 2000 : 300)};
    const Pattern pattern = kPatterns[cases.below(std::ssize(kPatterns))];
    const double density = cases.below(8) == 0 ? static_cast<double>(cases.below(2))
                                               : std::pow(cases.uniform(0.0, 1.0), 2.0);
    const OwnedTensor w = weight(shape, density, pattern);
    const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
    const GuardedTensor x =
        numbers(70, shape.columns, cases.below(2) == 0 ? Layout::strided : Layout::contiguous);
    const Expected all = expected_of(x.view(), w.view);
    for (int k = 0; k < kProducts; ++k) {
      const int64_t tokens = 1 + cases.below(cases.below(2) == 0 ? 16 : 70);
      ASSERT_TRUE(
          is_right(loaded.on(devices[static_cast<size_t>(cases.below(std::ssize(devices)))]),
                   x.view().rows(0, tokens), first_rows(all, tokens, shape.rows),
                   {.layout = cases.below(2) == 0 ? Layout::strided : Layout::contiguous,
                    .has_bias = cases.below(2) == 0}))
          << fmt::format("case {}: [{}, {}], density {}, {}, {} tokens", i, shape.rows,
                         shape.columns, density, name_of(pattern), tokens);
    }
  }
}

// More tiles of a warp than it looks up at a time, and rows of tiles that several blocks share.
TEST_P(GpuTiledCslMultistage, ManyTiles) {
  for (const Shape& shape : {Shape{130, 17000}, Shape{9000, 1100}, Shape{70, 33999}}) {
    const OwnedTensor w = uneven_weight(shape);
    const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
    const GuardedTensor x = numbers(40, shape.columns);
    const Expected all = expected_of(x.view(), w.view);
    for (const TileMultistageDevice& device : devices) {
      for (int64_t tokens : {5, 12, 40}) {
        ASSERT_TRUE(is_right(loaded.on(device), x.view().rows(0, tokens),
                             first_rows(all, tokens, shape.rows), {.has_bias = true}))
            << fmt::format("[{}, {}], {} tokens, {} bytes of shared memory", shape.rows,
                           shape.columns, tokens, device.shared_bytes);
      }
    }
  }
}

// In any batch, run after run.
TEST_P(GpuTiledCslMultistage, ARowHasTheSameBitsAlways) {
  constexpr int64_t kAlone = 70;
  for (const Shape& shape : {Shape{1030, 1040}, Shape{700, 333}}) {
    for (double density : {0.5, 0.1}) {
      const DeviceTileMatrix loaded(
          tiled_csl::encode_records(weight(shape, density).view, cpu.threads));
      const GuardedTensor x = numbers(200, shape.columns);
      for (const TileMultistageDevice& device : devices) {
        const TileMatrix matrix = loaded.on(device);
        const GuardedTensor alone(GetParam(), {kAlone, shape.rows}, Layout::contiguous, kGpu);
        for (int64_t t = 0; t < kAlone; ++t) {
          multiply(matrix, x.view().rows(t, 1), alone.view().rows(t, 1));
        }
        for (int64_t tokens : {1, 1, 2, 8, 9, 16, 17, 31, 33, 64, 64, 65, 70, 200}) {
          const int64_t begin = tokens < kAlone ? (kAlone - tokens) / 2 : 0;
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          multiply(matrix, x.view().rows(begin, tokens), y.view());
          gpu->cuda.synchronize();
          const int64_t count = std::min(tokens, kAlone - begin);
          EXPECT_TRUE(same_bits(y.view().rows(0, count), alone.view().rows(begin, count)))
              << fmt::format("[{}, {}], density {}, {} tokens, {} bytes of shared memory",
                             shape.rows, shape.columns, density, tokens, device.shared_bytes);
        }
      }
    }
  }
}

TEST_P(GpuTiledCslMultistage, RefusesMismatchedOperands) {
  const DeviceTileMatrix loaded(tiled_csl::encode_records(weight({64, 64}, 1.0).view, cpu.threads));
  const GuardedTensor x = numbers(2, 64);
  const GuardedTensor y(GetParam(), {2, 64}, Layout::contiguous, kGpu);
  for (const TileMultistageDevice& device :
       {TileMultistageDevice{},
        TileMultistageDevice{.multiprocessors = 1, .shared_bytes = 16 << 10}}) {
    EXPECT_FALSE(tile_multistage_fits(loaded.on(device)));
    EXPECT_THROW(multiply(loaded.on(device), x.view(), y.view()), Error);
  }
  const GuardedTensor f32(DType::f32, {2, 64}, Layout::contiguous, kGpu);
  EXPECT_THROW(multiply(loaded.matrix, f32.view(), y.view()), Error);
}

}  // namespace
}  // namespace sparsellm
