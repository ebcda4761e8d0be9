// The rows of GET /layers: what an engine says of its weights, and their text.

#include "tools/serve/layer_table.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

using nlohmann::json;

EngineOptions options(const std::string& format, int ranks) {
  EngineOptions options;
  options.with_tokenizer = false;
  options.max_requests = 1;
  options.context_size = 64;
  options.weight_format = format;
  options.tensor_parallel.degree = ranks;
  return options;
}

std::vector<BlockWeight> weights(const char* model, const std::string& format, int ranks = 1) {
  return Engine::load(testing::data("models") / model, options(format, ranks)).block_weights();
}

TEST(LayerTable, HasEachLayerOfAnEngine) {
  struct Case {
    const char* model;
    const char* format;
    const char* third;
  };
  for (const Case& c : {Case{"fable-llama-relu-8m", "dense", "gate_up"},
                        Case{"fable-llama-relu-8m", "tiled_csl", "gate_up"},
                        Case{"fable-opt-8m", "tca_bme", "up"}}) {
    SCOPED_TRACE(c.model);
    const Engine engine = Engine::load(testing::data("models") / c.model, options(c.format, 1));
    const std::vector<BlockWeight> all = engine.block_weights();
    ASSERT_EQ(all.size(), 4u * 8u);
    const std::vector<std::string> names{"qkv", "attention_out", c.third, "down"};
    int64_t elements = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].block, static_cast<int64_t>(i / 4));
      EXPECT_EQ(all[i].name, names[i % 4]);
      EXPECT_EQ(all[i].format, c.format);
      EXPECT_EQ(all[i].density().has_value(), c.format != std::string("dense"));
      EXPECT_GT(all[i].density().value_or(1.0), 0.99);
      EXPECT_LE(all[i].density().value_or(1.0), 1.0);
      elements += all[i].out * all[i].in;
      bytes += all[i].bytes;
    }
    EXPECT_EQ(all[1].out, engine.config().hidden_size);
    const std::vector<FormatSum> sums = engine.linear_weights();
    ASSERT_EQ(sums.size(), 1u);
    EXPECT_EQ(elements, sums[0].elements);
    EXPECT_EQ(bytes, sums[0].bytes);
  }
}

TEST(LayerTable, HasWhatTheFirstRankHas) {
  const std::vector<BlockWeight> one = weights("fable-llama-relu-8m", "dense");
  const std::vector<BlockWeight> two = weights("fable-llama-relu-8m", "dense", 2);
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(two[i].name, one[i].name);
    EXPECT_EQ(two[i].out * two[i].in * 2, one[i].out * one[i].in);
  }
}

TEST(LayerTable, IsJson) {
  LayerTable table = layer_table_of({{.block = 0,
                                      .name = "qkv",
                                      .out = 30,
                                      .in = 10,
                                      .format = "tca_bme",
                                      .bytes = 77,
                                      .nonzeros = 75},
                                     {.block = 1, .name = "down", .out = 4, .in = 3}},
                                    2);
  EXPECT_EQ(json::parse(layers_body("a \"model\"\n", table)), json::parse(R"({
      "model": "a \"model\"\n", "rank": 0, "ranks": 2, "layers": [
        {"block": 0, "name": "qkv", "out": 30, "in": 10, "density": 0.25, "format": "tca_bme",
         "bytes": 77},
        {"block": 1, "name": "down", "out": 4, "in": 3, "density": null, "format": "",
         "bytes": 0}]})"));

  table.rows[0].measured_block = 1;
  table.rows[0].times = {{.tokens = 8, .us_sparse = 2.0, .us_dense = 3.0},
                         {.tokens = 16, .us_sparse = 2.5, .us_dense = {}},
                         {.tokens = 32, .us_sparse = {}, .us_dense = {}}};
  const json row = json::parse(layers_body("m", table)).at("layers").at(0);
  EXPECT_EQ(row.at("times_of_block"), 1);
  EXPECT_EQ(row.at("times"), json::parse(R"([
      {"tokens": 8, "us_sparse": 2.0, "us_dense": 3.0, "speedup": 1.5},
      {"tokens": 16, "us_sparse": 2.5, "us_dense": null, "speedup": null},
      {"tokens": 32, "us_sparse": null, "us_dense": null, "speedup": null}])"));
  EXPECT_EQ(json::parse(layers_body("m", {})).at("layers"), json::array());
}

}  // namespace
}  // namespace sparsellm
