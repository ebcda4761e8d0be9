#include "sparse/prune/plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/format/layout.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Random;
using testing::TempDir;
using testing::throws_error;
using Kind = PruneMethod::Kind;

constexpr std::string_view kLlamaLinears[] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
constexpr std::string_view kOptLinears[] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2"};

std::string llama(int64_t layer, std::string_view linear) {
  return fmt::format("model.layers.{}.{}", layer, linear);
}
std::string opt(int64_t layer, std::string_view linear) {
  return fmt::format("model.decoder.layers.{}.{}", layer, linear);
}

SparsityPlan read(std::string_view json) {
  const TempDir dir;
  return SparsityPlan::read(dir.write("plan.json", json));
}

SparsityPlan shipped(const std::string& name) {
  return SparsityPlan::read(testing::source_dir() / "configs" / "plans" / (name + ".json"));
}

// Reading throws an Error of one line that begins like `where` and contains `what`.
void expect_error(std::string_view json, std::string_view where, std::string_view what) {
  const TempDir dir;
  const fs::path path = dir.write("plan.json", json);
  try {
    SparsityPlan::read(path);
    ADD_FAILURE() << "no Error was thrown for " << json;
  } catch (const Error& error) {
    const std::string_view text = error.what();
    EXPECT_TRUE(text.starts_with(fmt::format("{}{}", path.string(), where))) << text;
    EXPECT_NE(text.find(what), std::string_view::npos) << text << "\nexpected " << what;
    EXPECT_EQ(text.find('\n'), std::string_view::npos) << text;
  }
}

// A plan with a rule with these members, and what is wrong with it.
void expect_rule_error(std::string_view members, std::string_view what) {
  expect_error(
      fmt::format(R"({{"rules": [{{"tensors": "*.fc1", "prune": "none"}}, {{{}}}]}})", members),
      ": rule 2", what);
}

// The layers of which a rule with this "layers" holds.
std::vector<int64_t> layers_of(std::string_view range, int64_t layers) {
  const SparsityPlan plan = read(
      fmt::format(R"({{"rules": [{{"tensors": "*", "layers": {}, "prune": "1:2"}}]}})", range));
  std::vector<int64_t> found;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (plan.for_tensor(llama(layer, "mlp.up_proj"), layer, layers).prune.method.kind ==
        Kind::n_m) {
      found.push_back(layer);
    }
  }
  return found;
}

using Layers = std::vector<int64_t>;

TEST(SparsityPlan, Uniform) {
  PruneSettings settings;
  settings.method = parse_prune_method("magnitude");
  settings.scope = PruneScope::matrix;
  settings.sparsity = 0.65;
  const SparsityPlan plan = SparsityPlan::uniform(settings, "dense");
  const LayerPlan layer = plan.for_tensor(llama(3, "mlp.up_proj"), 3, 4);
  EXPECT_EQ(layer.prune.method.kind, Kind::magnitude);
  EXPECT_EQ(layer.prune.scope, PruneScope::matrix);
  EXPECT_EQ(layer.prune.sparsity, 0.65);
  EXPECT_TRUE(layer.prune.norms.empty());
  EXPECT_EQ(layer.format, "dense");
  EXPECT_EQ(layer.layout, "");
  const std::string layout = to_text(general_sparse::Layout());
  EXPECT_EQ(SparsityPlan::uniform(settings, "general_sparse", layout)
                .for_tensor(llama(3, "mlp.up_proj"), 3, 4)
                .layout,
            layout);
  EXPECT_TRUE(throws_error([&] { SparsityPlan::uniform(settings, "tiled_csl", layout); },
                           "the layout of the weight format tiled_csl cannot be chosen"));
  for (const char* format : {"tca_bme", "auto", "smallest"}) {
    EXPECT_TRUE(throws_error([&] { SparsityPlan::uniform(settings, format, layout); },
                             "they are for speed or size"));
    const LayerPlan small =
        SparsityPlan::uniform(settings, format, "size").for_tensor(llama(3, "mlp.up_proj"), 3, 4);
    EXPECT_EQ(small.records(), "size");
    EXPECT_EQ(small.layout_in("tca_bme"), (LayoutOptions{.layout = "size"}));
    EXPECT_EQ(small.layout_in("tiled_csl"), LayoutOptions());
  }
  EXPECT_TRUE(
      throws_error([&] { SparsityPlan::uniform(settings, "coo"); },
                   "the weight format \"coo\" is not known; use one of auto, smallest, dense"));
}

TEST(SparsityPlan, FirstMatchingRuleWins) {
  const SparsityPlan plan = read(R"({
    "description": "a test",
    "rules": [
      {"tensors": ["*.q_proj", "*.k_proj"], "layers": [0, 2], "prune": "2:4", "format": "dense"},
      {"tensors": "*.self_attn.*", "prune": "wanda", "sparsity": 0.4},
      {"tensors": "*.up_proj", "prune": "random", "scope": "matrix", "sparsity": 0.7, "seed": 3,
       "block": "4x8"},
      {"tensors": "*.down_proj", "prune": "none"}
    ],
    "default": {"prune": "magnitude", "sparsity": 1, "format": "auto"}})");
  EXPECT_EQ(plan.description(), "a test");

  const LayerPlan early_key = plan.for_tensor(llama(1, "self_attn.k_proj"), 1, 4);
  EXPECT_EQ(early_key.prune.method, parse_prune_method("2:4"));
  EXPECT_EQ(early_key.format, "dense");

  const LayerPlan late_key = plan.for_tensor(llama(2, "self_attn.k_proj"), 2, 4);
  EXPECT_EQ(late_key.prune.method.kind, Kind::wanda);
  EXPECT_EQ(late_key.prune.sparsity, 0.4);  // as a double
  EXPECT_EQ(late_key.prune.scope, PruneScope::row);
  EXPECT_EQ(late_key.format, "auto");

  const LayerPlan up = plan.for_tensor(llama(0, "mlp.up_proj"), 0, 4);
  EXPECT_EQ(up.prune.method.kind, Kind::random);
  EXPECT_EQ(up.prune.scope, PruneScope::matrix);
  EXPECT_EQ(up.prune.sparsity, 0.7);
  EXPECT_EQ(up.prune.block, (BlockShape{4, 8}));

  EXPECT_EQ(plan.for_tensor(llama(0, "mlp.down_proj"), 0, 4).prune.method.kind, Kind::none);

  const LayerPlan gate = plan.for_tensor(llama(0, "mlp.gate_proj"), 0, 4);
  EXPECT_EQ(gate.prune.method.kind, Kind::magnitude);
  EXPECT_EQ(gate.prune.sparsity, 1.0);
  EXPECT_EQ(gate.prune.block, BlockShape());
}

TEST(SparsityPlan, RecordsOfWhatMayBeTcaBme) {
  const SparsityPlan plan = read(R"({
    "rules": [
      {"tensors": "*.q_proj", "prune": "none", "format": "tca_bme", "records": "size"},
      {"tensors": "*.k_proj", "prune": "none", "records": "speed"},
      {"tensors": "*.v_proj", "prune": "none", "format": "tca_bme"}
    ],
    "default": {"prune": "none", "format": "smallest", "records": "size"}})");
  const auto of = [&](const char* module) {
    return plan.for_tensor(llama(0, module), 0, 4).records();
  };
  EXPECT_EQ(of("self_attn.q_proj"), "size");
  EXPECT_EQ(of("self_attn.k_proj"), "speed");
  EXPECT_EQ(of("self_attn.v_proj"), "");
  EXPECT_EQ(of("self_attn.o_proj"), "size");
  expect_rule_error(R"("tensors": "*.fc2", "prune": "none", "records": "small")",
                    "they are for speed or size");
  expect_rule_error(R"("tensors": "*.fc2", "prune": "none", "records": "")", "speed or size");
  expect_rule_error(R"("tensors": "*.fc2", "prune": "none", "records": 1)", "records");
  for (const char* format : {"dense", "tiled_csl", "general_sparse"}) {
    expect_rule_error(
        fmt::format(R"("tensors": "*.fc2", "prune": "none", "format": "{}", "records": "size")",
                    format),
        fmt::format("the weight format {} has none", format));
  }
}

TEST(SparsityPlan, ValuesOfWhatMayBeTcaBme) {
  const SparsityPlan plan = read(R"({
    "rules": [
      {"tensors": "*.q_proj", "prune": "none", "format": "tca_bme", "values": "i4:64"},
      {"tensors": "*.k_proj", "prune": "none", "values": "i8"},
      {"tensors": "*.v_proj", "prune": "none", "format": "tca_bme"}
    ],
    "default": {"prune": "none", "format": "smallest", "values": "f8"}})");
  const auto of = [&](const char* module) { return plan.for_tensor(llama(0, module), 0, 4); };
  EXPECT_EQ(of("self_attn.q_proj").records(), "i4:64");
  EXPECT_EQ(of("self_attn.k_proj").records(), "i8");
  EXPECT_EQ(of("self_attn.v_proj").records(), "");
  EXPECT_EQ(of("self_attn.o_proj").records(), "f8");
  EXPECT_EQ(of("self_attn.k_proj").layout_in("tca_bme"), (LayoutOptions{.layout = "i8"}));
  EXPECT_EQ(of("self_attn.k_proj").layout_in("tiled_csl"), LayoutOptions());
  constexpr char kTypes[] = "expected i8, f8, i4, i4:32, i4:64 or i4:128";
  for (const char* values :
       {"\"i5\"", "\"\"", "\"size\"", "\"i4:16\"", "\"i4:\"", "\"I8\"", "\"i8 \"", "\"i4:0128\""}) {
    expect_rule_error(fmt::format(R"("tensors": "*.fc2", "prune": "none", "values": {})", values),
                      kTypes);
  }
  for (const char* values : {"8", "[\"i8\"]", "{}", "true"}) {
    expect_rule_error(fmt::format(R"("tensors": "*.fc2", "prune": "none", "values": {})", values),
                      "values");
  }
  expect_rule_error(R"("tensors": "*.fc2", "prune": "none", "records": "i8")", "speed or size");
  expect_rule_error(R"("tensors": "*.fc2", "prune": "none", "records": "size", "values": "i8")",
                    "a rule has records or values, not both");
  for (const char* format : {"dense", "tiled_csl", "general_sparse"}) {
    expect_rule_error(
        fmt::format(R"("tensors": "*.fc2", "prune": "none", "format": "{}", "values": "i8")",
                    format),
        fmt::format("the weight format {} has none", format));
  }
}

TEST(SparsityPlan, ValuesOfDenseNarrowFormats) {
  const SparsityPlan plan = read(R"({
    "rules": [
      {"tensors": "*.q_proj", "prune": "none", "format": "dense_i8"},
      {"tensors": "*.k_proj", "prune": "none", "format": "dense_i8", "values": "i8"},
      {"tensors": "*.v_proj", "prune": "none", "format": "dense_i4", "values": "i4:64"}
    ],
    "default": {"prune": "none", "format": "dense_i4"}})");
  const auto of = [&](const char* module) { return plan.for_tensor(llama(0, module), 0, 4); };
  EXPECT_EQ(of("self_attn.q_proj").records(), "i8");
  EXPECT_EQ(of("self_attn.k_proj").records(), "i8");
  EXPECT_EQ(of("self_attn.v_proj").records(), "i4:64");
  EXPECT_EQ(of("self_attn.o_proj").records(), "i4");
  for (const char* member : {R"("values": "f8")", R"("values": "i4")", R"("records": "size")"}) {
    expect_rule_error(
        fmt::format(R"("tensors": "*.fc2", "prune": "none", "format": "dense_i8", {})", member),
        "the weight format dense_i8 holds values of i8");
  }
}

TEST(SparsityPlan, WithoutDefaultNothingIsPruned) {
  const SparsityPlan plan = read(R"({"rules": [{"tensors": "*.fc1", "prune": "2:4"}]})");
  const LayerPlan layer = plan.for_tensor(opt(0, "fc2"), 0, 4);
  EXPECT_EQ(layer.prune.method.kind, Kind::none);
  EXPECT_EQ(layer.format, "auto");
  EXPECT_EQ(plan.description(), "");
}

TEST(SparsityPlan, SeedsDifferByModuleAndSeed) {
  const auto plan_with = [](int seed) {
    return read(
        fmt::format(R"({{"default": {{"prune": "random", "sparsity": 0.5, "seed": {}}}}})", seed));
  };
  std::set<uint64_t> seeds;
  for (int seed = 0; seed < 10; ++seed) {
    const SparsityPlan plan = plan_with(seed);
    for (int64_t layer = 0; layer < 40; ++layer) {
      for (std::string_view linear : kLlamaLinears) {
        const std::string module = llama(layer, linear);
        const uint64_t found = plan.for_tensor(module, layer, 40).prune.seed;
        EXPECT_EQ(plan.for_tensor(module, layer, 40).prune.seed, found);
        seeds.insert(found);
      }
    }
  }
  EXPECT_EQ(seeds.size(), 10u * 40u * std::size(kLlamaLinears));
}

TEST(SparsityPlan, NumbersOfLayers) {
  EXPECT_EQ(layers_of("[0, 2]", 4), (Layers{0, 1}));
  EXPECT_EQ(layers_of("[1, 4]", 4), (Layers{1, 2, 3}));
  EXPECT_EQ(layers_of("[-2, 0]", 4), (Layers{2, 3}));
  EXPECT_EQ(layers_of("[-3, -1]", 4), (Layers{1, 2}));
  EXPECT_EQ(layers_of("[1, -1]", 4), (Layers{1, 2}));
  EXPECT_EQ(layers_of("[3, 0]", 4), (Layers{3}));
  EXPECT_EQ(layers_of("[-4, 2]", 4), (Layers{0, 1}));
  for (const char* range :
       {"[0, 5]", "[4, 5]", "[-5, 0]", "[-5, 3]", "[3, -1]", "[3, -2]", "[-1, 2]", "[5, 0]"}) {
    EXPECT_TRUE(throws_error([&] { layers_of(range, 4); }, "of a model with 4 layers")) << range;
    EXPECT_TRUE(throws_error([&] { layers_of(range, 4); }, "plan.json: rule 1: ")) << range;
  }
}

TEST(SparsityPlan, SharesOfLayers) {
  EXPECT_EQ(layers_of(R"({"first": 0.125})", 32), (Layers{0, 1, 2, 3}));
  EXPECT_EQ(layers_of(R"({"first": "1/8"})", 32), (Layers{0, 1, 2, 3}));
  EXPECT_EQ(layers_of(R"({"last": "1/8"})", 32), (Layers{28, 29, 30, 31}));
  EXPECT_EQ(layers_of(R"({"ends": "1/8"})", 16), (Layers{0, 1, 14, 15}));
  EXPECT_EQ(layers_of(R"({"between": [0.25, "3/4"]})", 8), (Layers{2, 3, 4, 5}));
  EXPECT_EQ(layers_of(R"({"between": [0, 1]})", 3), (Layers{0, 1, 2}));
  EXPECT_EQ(layers_of(R"({"first": 1})", 3), (Layers{0, 1, 2}));
  EXPECT_EQ(layers_of(R"({"last": 1})", 3), (Layers{0, 1, 2}));
  EXPECT_EQ(layers_of(R"({"ends": 0.5})", 3), (Layers{0, 1, 2}));
  EXPECT_EQ(layers_of(R"({"ends": "1/8"})", 4), (Layers{0, 3}));  // half a layer at each end
  EXPECT_EQ(layers_of(R"({"ends": "1/8"})", 3), (Layers{}));      // three eighths
  EXPECT_EQ(layers_of(R"({"first": 0.1})", 5), (Layers{0}));
  EXPECT_EQ(layers_of(R"({"last": 0.1})", 5), (Layers{4}));
  EXPECT_EQ(layers_of(R"({"between": [0.1, 0.9]})", 5), (Layers{1, 2, 3}));
}

TEST(SparsityPlan, SharesWithOneBorderAreAPartition) {
  for (int64_t layers = 1; layers <= 48; ++layers) {
    for (int numerator = 1; numerator < 16; ++numerator) {
      const double share = numerator / 16.0;
      const LayerRange first{.end = share};
      const LayerRange rest{.begin = share};
      int64_t in_first = 0;
      int64_t in_last = 0;
      for (int64_t layer = 0; layer < layers; ++layer) {
        ASSERT_NE(first.contains(layer, layers), rest.contains(layer, layers));
        in_first += first.contains(layer, layers) ? 1 : 0;
        in_last += LayerRange{.begin = 1.0 - share}.contains(layer, layers) ? 1 : 0;
      }
      if (numerator != 8) {
        EXPECT_EQ(in_first, in_last) << layers << " " << share;
      }
      EXPECT_LE(std::abs(static_cast<double>(in_first) - share * static_cast<double>(layers)), 0.5);
    }
  }
}

TEST(SparsityPlan, LayerOutsideTheModel) {
  const SparsityPlan plan = SparsityPlan::uniform({}, "auto");
  for (int64_t layer : {-1, 4, 5}) {
    EXPECT_TRUE(throws_error([&] { plan.for_tensor("model.layers.0.mlp.up_proj", layer, 4); },
                             "of a model with 4 layers"));
  }
}

TEST(SparsityPlan, RulesThatMatchNoName) {
  const SparsityPlan plan = read(R"({"rules": [
    {"tensors": ["*.fc1", "*.up_proj"], "prune": "2:4"},
    {"tensors": "*.mpl.*", "prune": "2:4"}]})");
  const std::vector<std::string> names{"model.layers.0.mlp.up_proj",
                                       "model.layers.0.mlp.down_proj"};
  const std::vector<int64_t> blocks{0, 0};
  EXPECT_TRUE(throws_error([&] { plan.require_rules_used(names, blocks); },
                           "rule 2: the pattern \"*.mpl.*\" matches none of the model's 2 linear"));
  const std::vector<std::string> both{"model.layers.0.mpl.up_proj"};
  EXPECT_NO_THROW(plan.require_rules_used(both, {blocks.data(), 1}));
}

TEST(SparsityPlan, RulesWithoutLayers) {
  const SparsityPlan plan =
      read(R"({"rules": [{"tensors": "*", "layers": {"first": 0.1}, "prune": "2:4"}]})");
  std::vector<std::string> names;
  std::vector<int64_t> blocks;
  for (int64_t layer = 0; layer < 10; ++layer) {
    names.push_back(llama(layer, "mlp.up_proj"));
    blocks.push_back(layer);
    if (layer < 4) {
      EXPECT_TRUE(throws_error([&] { plan.require_rules_used(names, blocks); },
                               "rule 1: its layers are none of the model's"));
    }
  }
  EXPECT_NO_THROW(plan.require_rules_used(names, blocks));
}

// The sparsities of all linear layers; -1 for one that stays dense.
double planned(const LayerPlan& plan) {
  if (plan.format == "dense") {
    EXPECT_EQ(plan.prune.method.kind, Kind::none);
    return -1.0;
  }
  EXPECT_EQ(plan.format, "auto");
  EXPECT_EQ(plan.prune.method.kind, Kind::magnitude);
  EXPECT_EQ(plan.prune.scope, PruneScope::row);
  return plan.prune.sparsity;
}

// Calls body(layer, linear, sparsity) for the linear layers of a Llama and an OPT model.
template <class Body>
void for_each_linear(const SparsityPlan& plan, int64_t layers, Body&& body) {
  std::vector<std::string> names;
  std::vector<int64_t> blocks;
  for (int64_t layer = 0; layer < layers; ++layer) {
    blocks.resize(blocks.size() + std::size(kLlamaLinears) + std::size(kOptLinears), layer);
    for (std::string_view linear : kLlamaLinears) {
      names.push_back(llama(layer, linear));
      body(layer, linear, planned(plan.for_tensor(names.back(), layer, layers)));
    }
    for (std::string_view linear : kOptLinears) {
      names.push_back(opt(layer, linear));
      body(layer, linear, planned(plan.for_tensor(names.back(), layer, layers)));
    }
  }
  EXPECT_NO_THROW(plan.require_rules_used(names, blocks));
}

TEST(ShippedPlans, AllParseAndHaveADescription) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(testing::source_dir() / "configs" / "plans")) {
    names.insert(entry.path().filename().string());
    EXPECT_GT(SparsityPlan::read(entry.path()).description().size(), 30u) << entry.path();
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"flash-llm.json", "generalsparse.json", "uniform-50.json",
                                   "uniform-60.json", "uniform-70.json", "uniform-80.json"}));
}

TEST(ShippedPlans, Uniform) {
  for (int percent : {50, 60, 70, 80}) {
    const SparsityPlan plan = shipped(fmt::format("uniform-{}", percent));
    for (int64_t layers : {4, 32, 40}) {
      for_each_linear(plan, layers, [&](int64_t, std::string_view, double sparsity) {
        EXPECT_EQ(sparsity, percent / 100.0);
      });
    }
  }
}

TEST(ShippedPlans, GeneralSparse) {
  const SparsityPlan plan = shipped("generalsparse");
  struct Case {
    int64_t layers;
    int64_t at_each_end;
  };
  for (Case c : {Case{32, 4}, Case{40, 5}, Case{4, 1}, Case{12, 2}, Case{80, 10}}) {
    for_each_linear(plan, c.layers, [&](int64_t layer, std::string_view, double sparsity) {
      const bool end = layer < c.at_each_end || layer >= c.layers - c.at_each_end;
      EXPECT_EQ(sparsity, end ? 0.7 : 0.9) << layer << " of " << c.layers;
    });
  }
}

TEST(ShippedPlans, FlashLlm) {
  const SparsityPlan plan = shipped("flash-llm");
  for (int64_t layers : {4, 32, 40}) {
    for_each_linear(plan, layers, [&](int64_t layer, std::string_view linear, double sparsity) {
      const bool input = linear == "fc1" || linear == "mlp.gate_proj" || linear == "mlp.up_proj";
      const bool end = layer < layers / 4 || layer >= layers - layers / 4;
      EXPECT_EQ(sparsity, input && end ? -1.0 : 0.8) << linear << " " << layer << " of " << layers;
    });
  }
}

TEST(SparsityPlanErrors, Documents) {
  const TempDir dir;
  EXPECT_TRUE(
      throws_error([&] { SparsityPlan::read(dir.path() / "missing.json"); }, "missing.json"));
  expect_error("", "", "plan.json: invalid JSON at byte");
  expect_error("[]", "", "plan.json is an array; expected an object");
  expect_error("{}", "", "plan.json has neither rules nor a default");
  expect_error(R"({"rules": [], "name": ""})", "", "plan.json has the unknown key \"name\"");
  expect_error(R"({"rules": {}})", ":", "rules is an object; expected an array");
  expect_error(R"({"rules": [], "description": 3})", ":", "description is 3; expected a string");
  expect_error(R"({"default": []})", ":", "default is an array; expected an object");
  expect_error(R"({"default": {}})", ":", "default: prune is missing");
  expect_error(R"({"default": {"prune": "none", "tensors": "*"}})", ":",
               "default has the unknown key \"tensors\"");
  expect_error(R"({"rules": [], "rules": []})", ":", "the key \"rules\" is there twice");
  expect_error(R"({"rules": [[[[[[[[[[[[]]]]]]]]]]]]})", ":", "nested more than 8 levels deep");

  std::string rules;
  for (int i = 0; i < 101; ++i) {
    rules += fmt::format(R"({}{{"tensors": "*.{}", "prune": "none"}})", i == 0 ? "" : ",", i);
  }
  expect_error("{\"rules\": [" + rules + "]}", "", "plan.json has 101 rules; expected at most 100");
  expect_error(std::string(70'000, ' ') + "{}", "", "plan.json");
}

TEST(SparsityPlanErrors, DamagedFilesAreErrorsOrPlans) {
  constexpr std::string_view kPlan = R"({"rules": [
    {"tensors": ["*.fc1", "a?b"], "layers": [-4, 0], "prune": "wanda", "sparsity": 0.4},
    {"tensors": "*", "layers": {"between": [0.2, "7/8"]}, "prune": "2:4", "format": "dense"}],
    "default": {"prune": "random", "sparsity": 1, "seed": 3, "scope": "matrix"}})";
  const TempDir dir;
  Random random(7);
  int plans = 0;
  for (int i = 0; i < 500; ++i) {
    std::string text(kPlan);
    for (int64_t damage = random.below(3); damage >= 0; --damage) {
      const auto at = static_cast<size_t>(random.below(std::ssize(kPlan)));
      text[at] = kPlan[static_cast<size_t>(random.below(std::ssize(kPlan)))];
    }
    try {
      const SparsityPlan plan = SparsityPlan::read(dir.write("plan.json", text));
      ++plans;
      plan.for_tensor("model.layers.1.mlp.up_proj", 1, 8);
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find("plan.json"), std::string_view::npos)
          << error.what();
    }
  }
  EXPECT_GT(plans, 10);
}

TEST(SparsityPlanErrors, Members) {
  expect_rule_error(R"("tensors": "*", "prune": "none", "sparseness": 1)",
                    "has the unknown key \"sparseness\"");
  expect_rule_error(R"("prune": "none")", "tensors is missing");
  expect_rule_error(R"("tensors": 7, "prune": "none")", "tensors is 7; expected a string");
  expect_rule_error(R"("tensors": ["*", 7], "prune": "none")", "tensors holds 7; expected strings");
  expect_rule_error(R"("tensors": [], "prune": "none")", "tensors has 0 patterns");
  expect_rule_error(R"("tensors": "*")", "prune is missing");
  expect_rule_error(R"("tensors": "*", "prune": null)", "prune is null; expected a string");
  expect_rule_error(R"("tensors": "*", "prune": "sparsegpt")",
                    "the pruning method \"sparsegpt\" is not known");
  expect_rule_error(R"("tensors": "*", "prune": "5:4")", "keeps 5 of 4");
  expect_rule_error(R"("tensors": "*", "prune": "magnitude")", "sparsity is missing");
  for (const char* sparsity : {"1.0001", "-0.1", "\"0.5\"", "true", "null", "[0.5]", "1e300"}) {
    expect_rule_error(
        fmt::format(R"("tensors": "*", "prune": "magnitude", "sparsity": {})", sparsity),
        "; expected a number from 0 to 1");
  }
  expect_rule_error(R"("tensors": "*", "prune": "none", "sparsity": 0.5)",
                    "sparsity is 0.5; the pruning method none has none");
  expect_rule_error(R"("tensors": "*", "prune": "2:4", "sparsity": 0.5)",
                    "the pruning method 2:4 has none");
  expect_rule_error(R"("tensors": "*", "prune": "wanda", "sparsity": 0.5, "scope": "row")",
                    "the pruning method wanda has none");
  expect_rule_error(R"("tensors": "*", "prune": "magnitude", "sparsity": 0.5, "scope": "layer")",
                    "scope is \"layer\"; expected row or matrix");
  for (const char* method : {R"("none")", R"("2:4")", R"("wanda", "sparsity": 0.5)"}) {
    expect_rule_error(fmt::format(R"("tensors": "*", "prune": {}, "block": "4x4")", method),
                      "block is \"4x4\"; the pruning method ");
  }
  for (const char* block : {"\"4\"", "\"0x4\"", "\"4x1025\"", "4", "[4, 4]"}) {
    expect_rule_error(
        fmt::format(R"("tensors": "*", "prune": "random", "sparsity": 0.5, "block": {})", block),
        "block ");
  }
  expect_rule_error(R"("tensors": "*", "prune": "magnitude", "sparsity": 0.5, "seed": 1)",
                    "the pruning method magnitude has none");
  expect_rule_error(R"("tensors": "*", "prune": "random", "sparsity": 0.5, "seed": -1)",
                    "seed is -1; expected an integer");
  expect_rule_error(R"("tensors": "*", "prune": "none", "format": "coo")",
                    "the weight format \"coo\" is not known; use one of auto, smallest, dense");
  expect_rule_error(R"("tensors": "*", "prune": "none", "format": 1)", "format is 1");
}

TEST(SparsityPlanErrors, Layers) {
  const auto error = [](std::string_view layers, std::string_view part) {
    expect_rule_error(fmt::format(R"("tensors": "*", "prune": "none", "layers": {})", layers),
                      part);
  };
  error("3", "layers is 3; expected an object");
  error("[1]", "layers has 1 elements; expected [begin, end]");
  error("[1, 2, 3]", "layers has 3 elements");
  error("[0.5, 2]", "layers holds 0.5; expected integers");
  error("[0, 100000]", "layers holds 100000");
  error("[2, 2]", "layers is [2, 2], which no layer is in");
  error("[3, 2]", "layers is [3, 2], which no layer is in");
  error("[-2, -2]", "layers is [-2, -2], which no layer is in");
  error("{}", "layers has 0 members; expected one of first, last, ends and between");
  error(R"({"first": 0.5, "last": 0.5})", "layers has 2 members");
  error(R"({"middle": 0.5})", "layers has the unknown key \"middle\"");
  error(R"({"first": 0})", "layers.first is 0; no layer is in that");
  error(R"({"first": null})", "layers.first is null");
  error(R"({"last": 1.5})", "layers.last is 1.5; expected a number from 0 to 1");
  error(R"({"ends": 0.6})", "layers.ends is 0.6; expected at most one half");
  error(R"({"between": 0.5})", "layers.between is 0.5; expected an array");
  error(R"({"between": [0.5]})", "layers.between has 1 elements");
  error(R"({"between": [0.5, 0.5]})", "layers.between is [0.5, 0.5], which no layer is in");
  error(R"({"between": [0.5, "x"]})", "layers.between[1] is \"x\"");
  for (const char* ratio : {"", "1", "1/", "/8", "1/0", "9/8", "-1/8", "1/8 ", "1//8", "1/8/2",
                            "1/99999999999", "0.5"}) {
    error(fmt::format(R"({{"first": "{}"}})", ratio),
          "expected a number from 0 to 1 or a fraction such as \"1/8\"");
  }
}

TEST(SparsityPlanErrors, PatternsThatCanMatchNothing) {
  const auto error = [](std::string_view pattern) {
    expect_rule_error(fmt::format(R"("tensors": "{}", "prune": "none")", pattern),
                      "matches no module name");
  };
  for (const char* pattern : {"", "a b", "*.mlp..up_proj", ".mlp*", "*mlp.", "model/layers/*",
                              "*.mlp\\n", "*.[ab]", "\\u00e9"}) {
    error(pattern);
  }
  error(std::string(201, 'a'));

  expect_rule_error(R"("tensors": "*.fc1", "prune": "2:4")",
                    "\"*.fc1\" matches nothing that \"*.fc1\" of an earlier rule does not match");
  expect_rule_error(R"("tensors": ["*.fc2", "model.*.fc1"], "layers": [0, 4], "prune": "2:4")",
                    "the pattern \"model.*.fc1\" matches nothing");
  // Behind a rule for some layers there are others left.
  constexpr std::string_view kBehind = R"({{"rules": [
    {{"tensors": "*", "layers": [0, 4], "prune": "none"}},
    {{"tensors": "*.fc1", "layers": {}, "prune": "none"}}]}})";
  EXPECT_NO_THROW(read(fmt::format(kBehind, "[0, 5]")));
  EXPECT_NO_THROW(read(fmt::format(kBehind, "null")));
  expect_error(fmt::format(kBehind, "[0, 4]"), ": rule 2", "the pattern \"*.fc1\" matches nothing");
  // A rule for other layers hides none that stand between it and this one.
  expect_error(R"({"rules": [{"tensors": "*", "layers": [0, 4], "prune": "none"},
                             {"tensors": "*.fc1", "prune": "none"},
                             {"tensors": "*.fc1", "layers": [0, 5], "prune": "none"}]})",
               ": rule 3", "the pattern \"*.fc1\" matches nothing that \"*.fc1\" of an earlier");
}

}  // namespace
}  // namespace sparsellm
