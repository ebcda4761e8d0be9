// Which kernel a product takes on a GPU of each kind. Planning is arithmetic on the host: no GPU is
// needed.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/format/tile_record.h"

namespace sparsellm {
namespace {

constexpr int64_t kRecordBytes[] = {16, 1616, 2768, 5504, 6272, tiled_csl::kMaxRecordBytes};
constexpr TileMultistageDevice kAmpere{.multiprocessors = 108, .shared_bytes = 163 << 10};
constexpr TileMultistageDevice kAda{.multiprocessors = 128, .shared_bytes = 99 << 10};

TEST(TiledCslPlan, BeforeHopperUpTo64TokensAreTheMultistageKernels) {
  for (const TileMultistageDevice& device : {kAmpere, kAda}) {
    for (const int64_t bytes : kRecordBytes) {
      const TileMatrix matrix{
          .rows = 1000, .columns = 1000, .largest_record = bytes, .multistage = device};
      EXPECT_TRUE(tile_multistage_fits(matrix));
      for (const int64_t tokens : {1, 32, 33, 64}) {
        const std::optional<TileMatmulConfig> config = tile_matmul_rule(matrix, tokens);
        ASSERT_TRUE(config.has_value()) << tokens << " tokens";
        EXPECT_TRUE(config == tile_matmul_for_any_tokens(matrix)) << tokens << " tokens";
        EXPECT_EQ(tile_matmul_name(*config), "multistage");
      }
      EXPECT_FALSE(tile_matmul_rule(matrix, 65).has_value()) << "they are expanded";
    }
  }
}

TEST(TiledCslPlan, HopperHasKernelsOfItsOwn) {
  for (const int64_t bytes : kRecordBytes) {
    const TileMatrix matrix{.rows = 1000,
                            .columns = 1000,
                            .largest_record = bytes,
                            .multiprocessors = 132,
                            .multistage = {.multiprocessors = 132, .shared_bytes = 227 << 10}};
    for (const int64_t tokens : {1, 32, 64, 128}) {
      const std::optional<TileMatmulConfig> config = tile_matmul_rule(matrix, tokens);
      ASSERT_TRUE(config.has_value()) << tokens << " tokens";
      EXPECT_FALSE(config->multistage) << tokens << " tokens";
    }
    EXPECT_FALSE(tile_matmul_for_any_tokens(matrix)->multistage);
  }
}

TEST(TiledCslPlan, OthersExpand) {
  for (const TileMultistageDevice& device :
       {TileMultistageDevice{},
        TileMultistageDevice{.multiprocessors = 40, .shared_bytes = 16 << 10}}) {
    const TileMatrix matrix{
        .rows = 1000, .columns = 1000, .largest_record = 16, .multistage = device};
    EXPECT_FALSE(tile_multistage_fits(matrix));
    EXPECT_FALSE(tile_matmul_rule(matrix, 1).has_value());
    EXPECT_FALSE(tile_matmul_for_any_tokens(matrix).has_value());
  }
}

}  // namespace
}  // namespace sparsellm
