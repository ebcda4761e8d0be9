// The files in configs/: every one has the number of parameters that was published.

#include "tools/bench/linear_shapes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/build_decoder.h"
#include "models/weights/shape_loader.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::throws_error;

fs::path config(const std::string& name) {
  return testing::source_dir() / "configs" / (name + ".json");
}

// All of a model's parameters; biases and norms as Hugging Face's implementations have them.
int64_t count_parameters(const fs::path& path) {
  const json file = json::parse(std::ifstream(path));
  const std::string type = file.at("model_type");
  const bool opt = type == "opt";
  const int64_t hidden = file.at("hidden_size");
  const int64_t layers = file.at("num_hidden_layers");
  const int64_t table = file.at("vocab_size").get<int64_t>() * hidden;
  int64_t total = table;
  for (const LinearShape& shape : linear_shapes(path)) {
    const bool tied = shape.name == "head" && file.at("tie_word_embeddings").get<bool>();
    const bool biased =
        opt ? shape.name != "head" : type == "qwen2" && shape.name == "self_attn.q_proj";
    total += tied ? 0 : shape.out * shape.in * shape.count;
    total += biased ? shape.out * shape.count : 0;
  }
  if (opt) {
    // OPT's table of positions has two rows more than positions, and its norms have a bias.
    total += (file.at("max_position_embeddings").get<int64_t>() + 2) * hidden;
    total += (2 * layers + 1) * 2 * hidden;
  } else {
    total += (2 * layers + 1) * hidden;
    total += type == "qwen3" ? layers * 2 * file.at("head_dim").get<int64_t>() : 0;
  }
  return total;
}

// Parameters of the published checkpoints; of the two largest OPT models only as in their names.
const std::map<std::string, int64_t> kPublished{
    {"opt-125m", 125'239'296},
    {"opt-1.3b", 1'315'758'080},
    {"opt-6.7b", 6'658'473'984},
    {"opt-13b", 12'853'473'280},
    {"opt-30b", 29'974'540'288},
    {"opt-66b", 66'000'000'000},
    {"opt-175b", 175'000'000'000},
    {"llama-65b", 65'285'660'672},
    {"llama-2-7b", 6'738'415'616},
    {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},
    {"llama-3.1-8b", 8'030'261'248},
    {"llama-3.1-70b", 70'553'706'496},
    {"qwen2-72b", 72'706'203'648},
    {"qwen2.5-7b", 7'615'616'512},
    {"qwen2.5-72b", 72'706'203'648},
    {"qwen3-8b", 8'190'735'360},
    {"qwen3-32b", 32'762'123'264},
    {"mistral-7b", 7'241'732'096},
    {"bamboo-7b", 7'241'732'096},
    {"minicpm-s-1b", 1'360'246'272},
    {"mixtral-8x7b", 46'702'792'704},
    {"prosparse-llama-2-7b", 6'738'415'616},
    {"prosparse-llama-2-13b", 13'015'864'320},
};

TEST(Configs, HaveThePublishedNumberOfParameters) {
  for (const auto& [name, published] : kPublished) {
    const int64_t counted = count_parameters(config(name));
    if (published % 1'000'000'000 == 0) {
      const auto nominal = static_cast<double>(published);
      EXPECT_NEAR(static_cast<double>(counted), nominal, 0.01 * nominal) << name;
    } else {
      EXPECT_EQ(counted, published) << name;
    }
  }
}

TEST(Configs, AreAllTested) {
  std::set<std::string> files;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(testing::source_dir() / "configs")) {
    if (entry.path().extension() == ".json") {
      files.insert(entry.path().stem().string());
    }
  }
  std::set<std::string> tested;
  for (const auto& [name, published] : kPublished) {
    tested.insert(name);
  }
  EXPECT_EQ(files, tested);
}

TEST(Configs, AreReadByTheEngine) {
  for (const auto& [name, published] : kPublished) {
    if (name == "mixtral-8x7b") {
      EXPECT_TRUE(
          throws_error([&file = name] { read_model_config_file(config(file)); }, "architectures"));
      continue;
    }
    const ModelConfig read = read_model_config_file(config(name));
    EXPECT_EQ(read.warning, "");
    const json file = json::parse(std::ifstream(config(name)));
    EXPECT_EQ(read.architecture, file.at("architectures").at(0));
    EXPECT_EQ(read.activation.threshold, file.value("hidden_act_param", 0.0f));
    EXPECT_EQ(read.tied_head, file.at("tie_word_embeddings"));
    const std::set<std::string> narrow{"opt-125m", "opt-1.3b", "minicpm-s-1b"};
    EXPECT_EQ(read.head_dim, narrow.contains(name) ? 64 : 128) << name;
    EXPECT_EQ(linear_shapes(read), linear_shapes(config(name)));
  }
  const ModelConfig llama = read_model_config_file(config("llama-3.1-70b"));
  EXPECT_EQ(llama.num_kv_heads, 8);
  EXPECT_EQ(llama.max_positions, 131072);
  EXPECT_EQ(llama.rope_scaling.kind, RopeScaling::Kind::llama3);
}

TEST(LinearShapes, Opt) {
  const std::vector<LinearShape> expected{
      {.name = "self_attn.q_proj", .out = 21504, .in = 7168, .count = 48, .pruned = true},
      {.name = "self_attn.out_proj", .out = 7168, .in = 7168, .count = 48, .pruned = true},
      {.name = "fc1", .out = 28672, .in = 7168, .count = 48, .pruned = true},
      {.name = "fc2", .out = 7168, .in = 28672, .count = 48, .pruned = true},
      {.name = "head", .out = 50272, .in = 7168, .count = 1, .pruned = false},
  };
  EXPECT_EQ(linear_shapes(config("opt-30b")), expected);
}

TEST(LinearShapes, GroupedQueries) {
  const std::vector<LinearShape> shapes = linear_shapes(config("llama-3.1-8b"));
  ASSERT_EQ(shapes.size(), 5u);
  EXPECT_EQ(shapes[0].out, 4096 + 2 * 1024);
  EXPECT_EQ(shapes[2].name, "mlp.gate_proj");
  EXPECT_EQ(shapes[2].out, 2 * 14336);
  EXPECT_EQ(shapes[3].in, 14336);
  EXPECT_EQ(linear_shapes(config("qwen2-72b"))[0].out, 8192 + 2 * 1024);
}

TEST(LinearShapes, Experts) {
  const std::vector<LinearShape> shapes = linear_shapes(config("mixtral-8x7b"));
  ASSERT_EQ(shapes.size(), 6u);
  EXPECT_EQ(shapes[1].count, 32);
  EXPECT_EQ(shapes[2],
            (LinearShape{
                .name = "mlp.gate_proj", .out = 28672, .in = 4096, .count = 256, .pruned = true}));
  EXPECT_EQ(shapes[3],
            (LinearShape{
                .name = "mlp.down_proj", .out = 4096, .in = 14336, .count = 256, .pruned = true}));
  EXPECT_EQ(shapes[4],
            (LinearShape{.name = "router", .out = 8, .in = 4096, .count = 32, .pruned = false}));
}

std::vector<LinearShape> shard_shapes(const std::string& name, int64_t degree, int64_t rank = 0) {
  return linear_shard_shapes(config(name), {.rank = rank, .degree = degree});
}

TEST(LinearShapes, Shards) {
  EXPECT_EQ(shard_shapes("opt-30b", 1), linear_shapes(config("opt-30b")));
  std::vector<LinearShape> expected{
      {.name = "self_attn.q_proj", .out = 5376, .in = 7168, .count = 48, .pruned = true},
      {.name = "self_attn.out_proj", .out = 7168, .in = 1792, .count = 48, .pruned = true},
      {.name = "fc1", .out = 7168, .in = 7168, .count = 48, .pruned = true},
      {.name = "fc2", .out = 7168, .in = 7168, .count = 48, .pruned = true},
      {.name = "head", .out = 12608, .in = 7168, .count = 1, .pruned = false},
  };
  EXPECT_EQ(shard_shapes("opt-30b", 4), expected);
  expected.back().out = 50272 - 12608 - 2 * 12544;
  EXPECT_EQ(shard_shapes("opt-30b", 4, 3), expected);
  const std::vector<LinearShape> grouped = shard_shapes("llama-3.1-8b", 2);
  EXPECT_EQ(grouped[0].out, 2048 + 2 * 512);
  EXPECT_EQ(grouped[2].out, 2 * 7168);
  EXPECT_EQ(shard_shapes("llama-3.1-8b", 16)[0].out, 4 * 128)
      << "two heads of queries, and one of keys and values that two ranks have";
  const std::vector<LinearShape> experts = shard_shapes("mixtral-8x7b", 4);
  EXPECT_EQ(experts[2].out, 2 * 3584);
  EXPECT_EQ(experts[2].count, 256);
  EXPECT_EQ(experts[3].in, 3584);
  EXPECT_EQ(experts[4].out, 8);
  for (const auto& [name, published] : kPublished) {
    EXPECT_NO_THROW(shard_shapes(name, 4)) << name;
  }
  EXPECT_TRUE(throws_error([] { shard_shapes("opt-13b", 3); },
                           "opt-13b.json: 3 GPUs cannot share 40 attention heads"));
  EXPECT_TRUE(throws_error([] { shard_shapes("opt-13b", 0); }, "0 GPUs"));
}

// What one block and the head take in f16, by their shapes.
int64_t bytes_of(const std::vector<LinearShape>& shapes, const ModelConfig& model, int64_t rank) {
  int64_t elements = 0;
  for (const LinearShape& shape : shapes) {
    const bool is_table = shape.name == "head" && model.tied_head;
    elements += is_table ? 0 : shape.out * shape.in;
    const bool adds_up = shape.name == "self_attn.out_proj" || shape.name == "fc2";
    const bool has_bias = (model.mlp_bias && shape.name != "head") ||
                          (model.qkv_bias && shape.name == "self_attn.q_proj");
    elements += has_bias && (!adds_up || rank == 0) ? shape.out : 0;
  }
  return 2 * elements;
}

// For each config and degree: refused by name, or the shares of all ranks are all there is, and the
// bytes that a rank loads are those of its shapes and of what all ranks have.
TEST(LinearShapes, AreWhatRanksLoad) {
  for (const auto& [name, published] : kPublished) {
    if (name == "mixtral-8x7b") {
      continue;  // which the engine does not run
    }
    ModelConfig model = read_model_config_file(config(name));
    model.num_layers = 1;
    const auto loaded = [&](const Shard& shard) {
      ShapeLoader shapes({Device::Kind::cuda, 0}, DType::f16, {}, shard);
      build_decoder(model, shapes);
      return shapes.loaded_bytes();
    };
    const int64_t all = bytes_of(linear_shapes(config(name)), model, 0);
    const int64_t common = loaded({}) - all;  // embeddings and norms
    for (int64_t degree = 2; degree <= 8; ++degree) {
      SCOPED_TRACE(name + ", degree " + std::to_string(degree));
      const bool shares_heads = model.num_heads % degree == 0;
      if (!shares_heads || (model.num_kv_heads % degree != 0 && degree % model.num_kv_heads != 0)) {
        const std::string reason =
            shares_heads
                ? fmt::format("{} GPUs cannot share {} heads of keys and values", degree,
                              model.num_kv_heads)
                : fmt::format("{} GPUs cannot share {} attention heads", degree, model.num_heads);
        EXPECT_TRUE(throws_error([&] { shard_shapes(name, degree); }, reason));
        EXPECT_TRUE(throws_error([&] { loaded({.rank = 0, .degree = degree}); }, reason));
        continue;
      }
      int64_t sum = 0;
      for (int64_t rank = 0; rank < degree; ++rank) {
        const int64_t own = bytes_of(shard_shapes(name, degree, rank), model, rank);
        EXPECT_EQ(loaded({.rank = rank, .degree = degree}), common + own);
        sum += own;
      }
      EXPECT_EQ(sum, all);
    }
  }
}

TEST(LinearShapes, Errors) {
  const testing::TempDir directory;
  const auto shapes_of = [&](const char* text) {
    return linear_shapes(directory.write("config.json", text));
  };
  EXPECT_TRUE(throws_error([&] { linear_shapes(fs::path("/no/such/config.json")); }, "/no/such"));
  EXPECT_TRUE(throws_error([&] { shapes_of("{"); }, "config.json"));
  EXPECT_TRUE(throws_error([&] { shapes_of("{}"); }, "architectures"));
  EXPECT_TRUE(throws_error([&] { shapes_of(R"({"architectures": ["MambaForCausalLM"]})"); },
                           "MambaForCausalLM"));
  EXPECT_TRUE(throws_error([&] { shapes_of(R"({"architectures": ["Qwen2ForCausalLM"]})"); },
                           "num_attention_heads"));
}

}  // namespace
}  // namespace sparsellm
