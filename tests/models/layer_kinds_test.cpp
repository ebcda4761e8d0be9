#include "models/layer_kinds.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

namespace sparsellm {
namespace {

JoinedLinear layer_of(int64_t block, int64_t rows, bool bias = false) {
  return {.parts = {{.module = fmt::format("layers.{}.{}", block, rows),
                     .block = block,
                     .rows = rows,
                     .columns = 64}},
          .rows = rows,
          .columns = 64,
          .has_bias = bias,
          .activation = {}};
}

TEST(LayerKinds, AreLayersOfOneShapeAndNearlyOneDensity) {
  std::vector<JoinedLinear> layers;
  for (int64_t block = 0; block < 6; ++block) {
    layers.push_back(layer_of(block, 128));
    layers.push_back(layer_of(block, 256));
  }
  const std::vector<double> densities{0.42, 0.4, 0.44, 0.9, 0.41, 0.43};
  const std::vector<LayerKind> kinds = layer_kinds(layers, [&](const JoinedLinear& layer) {
    return LayerWeight{
        .density = layer.rows == 128 ? densities[static_cast<size_t>(layer.parts[0].block)] : 0.5};
  });
  ASSERT_EQ(kinds.size(), 3u);
  EXPECT_EQ(kinds[0].count(), 5);
  EXPECT_EQ(kinds[0].weight.density, 0.42);  // the median
  EXPECT_EQ(kinds[0].layer.first_weight(), "layers.0.128.weight");
  ASSERT_EQ(kinds[0].weights.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_DOUBLE_EQ(kinds[0].weights[i].density, 0.40 + 0.01 * static_cast<double>(i));
  }
  EXPECT_EQ(kinds[0].first_weights.front(), "layers.1.128.weight");
  EXPECT_EQ(kinds[1].first_weights, std::vector<std::string>{"layers.3.128.weight"});
  EXPECT_EQ(kinds[2].count(), 6);
  EXPECT_EQ(kinds[2].layer.rows, 256);
}

TEST(LayerKinds, WithoutASpreadHaveOneDensity) {
  std::vector<JoinedLinear> layers;
  for (int64_t block = 0; block < 6; ++block) {
    layers.push_back(layer_of(block, 128));
  }
  const std::vector<LayerKind> kinds = layer_kinds(
      layers,
      [](const JoinedLinear& layer) {
        return LayerWeight{.density = layer.parts[0].block % 3 == 0 ? 0.4 : 0.41};
      },
      0.0);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].count(), 2);
  EXPECT_EQ(kinds[1].count(), 4);
}

TEST(LayerKinds, DoNotSpreadOverDensitiesThatFollowEachOther) {
  std::vector<JoinedLinear> layers;
  for (int64_t block = 0; block < 100; ++block) {
    layers.push_back(layer_of(block, 128));
  }
  const std::vector<LayerKind> kinds = layer_kinds(layers, [&](const JoinedLinear& layer) {
    return LayerWeight{.density = 0.01 * static_cast<double>(layer.parts[0].block)};
  });
  EXPECT_GE(kinds.size(), 16u);
  EXPECT_LE(kinds.size(), 20u);
}

TEST(LayerKinds, DifferInAllThatATimeDependsOn) {
  std::vector<JoinedLinear> layers{layer_of(0, 128), layer_of(1, 128, true), layer_of(2, 128),
                                   layer_of(3, 128), layer_of(4, 128),       layer_of(5, 128),
                                   layer_of(6, 128), layer_of(7, 128)};
  layers[2].activation.kind = Activation::Kind::relu;
  const std::vector<LayerKind> kinds = layer_kinds(layers, [&](const JoinedLinear& layer) {
    LayerWeight weight{.density = 0.5};
    weight.stored = layer.parts[0].block == 3 ? "tca_bme" : "";
    weight.planned = layer.parts[0].block == 5 ? "tca_bme" : "";
    weight.dtype = layer.parts[0].block == 4 ? DType::bf16 : DType::f16;
    weight.zeros = layer.parts[0].block >= 6 ? "rows:0" : "uniform";
    return weight;
  });
  EXPECT_EQ(kinds.size(), 7u);
  EXPECT_EQ(kinds.back().count(), 2);
}

TEST(AlikeBlocks, HaveLayersOfTheSameKinds) {
  std::vector<JoinedLinear> layers;
  for (int64_t block = 0; block < 8; ++block) {
    layers.push_back(layer_of(block, 128));
    layers.push_back(layer_of(block, 256));
  }
  // Blocks 0, 1 and 7 have denser layers of 128 rows; block 4 has a denser one of 256, too.
  const std::vector<LayerKind> kinds = layer_kinds(layers, [](const JoinedLinear& layer) {
    const int64_t block = layer.parts[0].block;
    const bool denser = layer.rows == 128 ? block < 2 || block == 4 || block == 7 : block == 4;
    return LayerWeight{.density = denser ? 0.5 : 0.2};
  });
  const std::vector<AlikeBlocks> alike = alike_blocks(layers, kinds);
  ASSERT_EQ(alike.size(), 3u);
  EXPECT_EQ(alike[0].block, 1);
  EXPECT_EQ(alike[0].count, 3);
  EXPECT_EQ(alike[1].block, 5);  // of 2, 3, 5 and 6
  EXPECT_EQ(alike[1].count, 4);
  EXPECT_EQ(alike[2].block, 4);
  EXPECT_EQ(alike[2].count, 1);
}

}  // namespace
}  // namespace sparsellm
