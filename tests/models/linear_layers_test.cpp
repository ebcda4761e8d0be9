#include "models/linear_layers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

std::vector<std::string> modules_of(const JoinedLinear& joined) {
  std::vector<std::string> modules;
  for (const LinearLayer& part : joined.parts) {
    modules.push_back(part.module);
  }
  return modules;
}

using Names = std::vector<std::string>;

TEST(LinearLayers, AreJoinedAsTheEngineMultipliesThem) {
  const ModelConfig config =
      read_model_config_file(testing::source_dir() / "configs" / "llama-3.1-8b.json");
  const std::vector<JoinedLinear> joined = joined_linear_layers(config);
  ASSERT_EQ(joined.size(), 32u * 4u);
  const std::string block = "model.layers.1.";
  EXPECT_EQ(modules_of(joined[4]), (Names{block + "self_attn.q_proj", block + "self_attn.k_proj",
                                          block + "self_attn.v_proj"}));
  EXPECT_EQ(joined[4].rows, 4096 + 2 * 1024);
  EXPECT_EQ(joined[4].columns, 4096);
  EXPECT_EQ(modules_of(joined[5]), Names{block + "self_attn.o_proj"});
  EXPECT_EQ(modules_of(joined[6]), (Names{block + "mlp.gate_proj", block + "mlp.up_proj"}));
  EXPECT_EQ(joined[6].rows, 2 * 14336);
  EXPECT_EQ(modules_of(joined[7]), Names{block + "mlp.down_proj"});
  EXPECT_EQ(joined[7].columns, 14336);
  EXPECT_EQ(joined[4].parts[1].rows, 1024);
  EXPECT_EQ(joined[4].parts[1].block, 1);
  EXPECT_EQ(kind_of(joined[4].parts[1]), "self_attn.k_proj");
}

TEST(LinearLayers, OfAllBlocksInOrder) {
  const ModelConfig config =
      read_model_config_file(testing::source_dir() / "configs" / "opt-125m.json");
  const std::vector<LinearLayer> layers = linear_layers(config);
  ASSERT_EQ(layers.size(), 12u * 6u);
  const Names kinds{"self_attn.q_proj",
                    "self_attn.k_proj",
                    "self_attn.v_proj",
                    "self_attn.out_proj",
                    "fc1",
                    "fc2"};
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(layers[i].block, static_cast<int64_t>(i / kinds.size()));
    EXPECT_EQ(kind_of(layers[i]), kinds[i % kinds.size()]);
  }
  EXPECT_EQ(layers.back().module, "model.decoder.layers.11.fc2");
  EXPECT_EQ(layers.back().rows, 768);
  EXPECT_EQ(layers.back().columns, 3072);
}

}  // namespace
}  // namespace sparsellm
