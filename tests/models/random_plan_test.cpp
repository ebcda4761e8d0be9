#include "models/random_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "models/weights/random_loader.h"
#include "models/weights/shape_loader.h"
#include "sparse/choice/format_rules.h"
#include "sparse/registry.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr ZeroPattern kByRow{.kind = ZeroPattern::Kind::rows};

ModelConfig shape(const std::string& name) {
  return read_model_config_file(source_dir() / "configs" / (name + ".json"));
}

SparsityPlan shipped(const std::string& name) {
  return SparsityPlan::read(source_dir() / "configs" / "plans" / (name + ".json"));
}

SparsityPlan read(std::string_view json) {
  const TempDir dir;
  return SparsityPlan::read(dir.write("plan.json", json));
}

// Of a Llama with grouped queries.
RandomLinears planned(std::string_view json, const RandomPlanOptions& options = {}) {
  return plan_random_linears(read(json), shape("llama-3.1-8b"), options);
}

RandomLinear llama(const RandomLinears& linears, int64_t block, std::string_view linear) {
  return linears.at(fmt::format("model.layers.{}.{}", block, linear));
}

std::vector<double> elements_of(const WeightMatrix& weight) {
  CpuContext ctx(1);
  const GuardedTensor values(weight.dtype(), {weight.out(), weight.in()});
  weight.expand({.begin = 0, .count = weight.out()}, values.view(), ctx.exec);
  return values_of(values.view());
}

TEST(RandomPlan, FlashLlm) {
  const RandomLinears opt = plan_random_linears(shipped("flash-llm"), shape("opt-30b"), {});
  EXPECT_EQ(opt.size(), 48u * 6u);
  // By the rules of the build: of a large layer, and of others.
  const RandomLinear large{.sparsity = 0.8, .pattern = kByRow, .format = "tiled_csl"};
  const RandomLinear sparse{.sparsity = 0.8, .pattern = kByRow, .format = "tca_bme"};
  const RandomLinear dense{.sparsity = 0.0, .pattern = {}, .format = "dense"};
  for (int64_t block = 0; block < 48; ++block) {
    SCOPED_TRACE(block);
    const std::string module = fmt::format("model.decoder.layers.{}.", block);
    EXPECT_EQ(opt.at(module + "fc1"), block < 12 || block >= 36 ? dense : large);
    // q, k and v are joined.
    for (const char* linear : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "fc2"}) {
      EXPECT_EQ(opt.at(module + linear), large) << linear;
    }
    EXPECT_EQ(opt.at(module + "self_attn.out_proj"), sparse);
  }
  const RandomLinears of_llama = plan_random_linears(shipped("flash-llm"), shape("llama-2-7b"), {});
  EXPECT_EQ(of_llama.size(), 32u * 7u);
  EXPECT_EQ(llama(of_llama, 7, "mlp.gate_proj"), dense);
  EXPECT_EQ(llama(of_llama, 7, "mlp.up_proj"), dense);
  EXPECT_EQ(llama(of_llama, 8, "mlp.up_proj"), sparse);
  EXPECT_EQ(llama(of_llama, 0, "mlp.down_proj"), sparse);
}

TEST(RandomPlan, GeneralSparse) {
  for (const char* name : {"opt-30b", "opt-125m", "llama-2-13b", "llama-3.1-70b"}) {
    const ModelConfig config = shape(name);
    const RandomLinears linears = plan_random_linears(shipped("generalsparse"), config, {});
    const double ends = static_cast<double>(config.num_layers) / 8.0;
    int64_t at_ends = 0;
    for (const auto& [module, linear] : linears) {
      SCOPED_TRACE(module);
      EXPECT_EQ(linear.pattern, kByRow);
      EXPECT_EQ(linear.format, "tca_bme");
      EXPECT_TRUE(linear.sparsity == 0.7 || linear.sparsity == 0.9);
      at_ends += linear.sparsity == 0.7 ? 1 : 0;
    }
    const int64_t of_block = std::ssize(linears) / config.num_layers;
    EXPECT_EQ(at_ends % of_block, 0);
    const int64_t blocks = at_ends / of_block;
    EXPECT_NEAR(static_cast<double>(blocks), 2.0 * ends, 1.0) << name;
  }
}

TEST(RandomPlan, MethodsAreRandomZeros) {
  const RandomLinears linears = planned(R"({"rules": [
      {"tensors": "*.q_proj", "prune": "magnitude", "sparsity": 0.6, "scope": "matrix"},
      {"tensors": "*.k_proj", "prune": "random", "sparsity": 0.7},
      {"tensors": "*.v_proj", "prune": "wanda", "sparsity": 0.65},
      {"tensors": "*.o_proj", "prune": "2:8"},
      {"tensors": "*.up_proj", "prune": "magnitude", "sparsity": 0, "format": "tca_bme"},
      {"tensors": "*.down_proj", "prune": "random", "sparsity": 0.5, "block": "8x4",
       "format": "tiled_csl"}]})");
  const auto expect = [&](const char* linear, double sparsity, const ZeroPattern& pattern,
                          const char* format) {
    EXPECT_EQ(llama(linears, 3, linear),
              (RandomLinear{.sparsity = sparsity, .pattern = pattern, .format = format}))
        << linear;
  };
  expect("self_attn.q_proj", 0.6, {}, "tca_bme");
  expect("self_attn.k_proj", 0.7, kByRow, "tca_bme");
  expect("self_attn.v_proj", 0.65, kByRow, "tca_bme");
  expect("self_attn.o_proj", 0.75, kByRow, "tca_bme");
  expect("mlp.gate_proj", 0.0, {}, "dense");  // as up_proj, which has no more rows
  expect("mlp.up_proj", 0.0, {}, "dense");
  expect("mlp.down_proj", 0.5, {.kind = ZeroPattern::Kind::kept_blocks, .block = {8, 4}},
         "tiled_csl");
}

// That of the part with the most rows; of equally many, of the first.
TEST(RandomPlan, JoinedLayersHaveOneFormat) {
  const RandomLinears linears = planned(R"({"rules": [
      {"tensors": "*.k_proj", "prune": "none", "format": "dense"},
      {"tensors": "*.q_proj", "prune": "magnitude", "sparsity": 0.5, "format": "tiled_csl"},
      {"tensors": "*.gate_proj", "prune": "magnitude", "sparsity": 0.3, "format": "dense"},
      {"tensors": "*.up_proj", "prune": "magnitude", "sparsity": 0.9, "format": "tca_bme"}]})");
  for (const char* linear : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(llama(linears, 0, fmt::format("self_attn.{}", linear)).format, "tiled_csl");
  }
  EXPECT_EQ(llama(linears, 0, "self_attn.o_proj").format, "dense");
  EXPECT_EQ(llama(linears, 0, "mlp.gate_proj").format, "dense");
  EXPECT_EQ(llama(linears, 0, "mlp.up_proj").format, "dense");
  EXPECT_EQ(llama(linears, 0, "mlp.up_proj").sparsity, 0.9);
}

// A joined layer has the records of the part with the most rows, as it has its format. Records that
// an option gives replace those of the plan.
TEST(RandomPlan, RecordsAreThoseOfThePlan) {
  constexpr const char* kPlan = R"({"rules": [
      {"tensors": "*.q_proj", "prune": "random", "sparsity": 0.8, "format": "tca_bme",
       "records": "size"},
      {"tensors": "*.o_proj", "prune": "random", "sparsity": 0.8, "format": "tca_bme",
       "records": "speed"},
      {"tensors": "*.down_proj", "prune": "random", "sparsity": 0.8, "format": "tca_bme"}],
      "default": {"prune": "random", "sparsity": 0.8, "format": "tiled_csl"}})";
  const RandomLinears linears = planned(kPlan);
  for (const char* linear : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(llama(linears, 1, fmt::format("self_attn.{}", linear)).format, "tca_bme");
    EXPECT_EQ(llama(linears, 1, fmt::format("self_attn.{}", linear)).records, "size");
  }
  EXPECT_EQ(llama(linears, 1, "self_attn.o_proj").records, "speed");
  EXPECT_EQ(llama(linears, 1, "mlp.down_proj").records, "");
  EXPECT_EQ(llama(linears, 1, "mlp.up_proj").records, "");
  const RandomLinears given = planned(kPlan, {.records = "size"});
  for (const char* linear : {"self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj"}) {
    EXPECT_EQ(llama(given, 1, linear).records, "size");
  }
  const RandomWeights weights{.planned = given};
  EXPECT_EQ(in_formats(weights, {{"model.layers.1.mlp.up_proj.weight", {"tca_bme", "size"}}})
                .linear("model.layers.1.mlp.up_proj.weight")
                .records,
            "size");
  EXPECT_EQ(in_format(weights, {"tca_bme"}).linear("model.layers.1.mlp.up_proj.weight").records,
            "");
}

TEST(RandomPlan, SmallestIsExpectedToBeIt) {
  for (const double sparsity : {0.0, 0.05, 0.5, 0.95, 1.0}) {
    SCOPED_TRACE(sparsity);
    const RandomLinears linears = planned(fmt::format(
        R"({{"default": {{"prune": "random", "sparsity": {}, "format": "smallest"}}}})", sparsity));
    const auto bytes = [&](const WeightFormat& format) {
      return format.expected_bytes(weight_header(
          format, {.rows = 4096, .columns = 14336, .density = 1.0 - sparsity}, DType::f16));
    };
    const int64_t smallest = bytes(weight_format(llama(linears, 0, "mlp.down_proj").format));
    for (const WeightFormat* format : smallest_formats()) {
      EXPECT_LE(smallest, bytes(*format));
    }
  }
}

// As the converter: for a few tokens, by the density of what is joined.
TEST(RandomPlan, AutoIsWhatRulesChoose) {
  for (const double sparsity : {0.0, 0.3, 0.5, 0.7, 1.0}) {
    SCOPED_TRACE(sparsity);
    const RandomLinears linears =
        planned(fmt::format(R"({{"default": {{"prune": "random", "sparsity": {}}}}})", sparsity));
    const WeightSize size{.rows = 4096, .columns = 14336, .density = 1.0 - sparsity};
    EXPECT_EQ(llama(linears, 0, "mlp.down_proj").format,
              FormatRules::built_in().choose(size, kDecodedTokens).name());
  }
  const RandomLinears joined = planned(R"({"rules": [
      {"tensors": "*.q_proj", "prune": "random", "sparsity": 0.4},
      {"tensors": "*.up_proj", "prune": "random", "sparsity": 0.4}],
      "default": {"prune": "random", "sparsity": 0.9}})");
  EXPECT_EQ(llama(joined, 0, "self_attn.q_proj").format, "tca_bme");  // 57 % zeros with k and v
  EXPECT_EQ(llama(joined, 0, "mlp.up_proj").format, "tca_bme");
  // f32 is held by the dense format alone.
  for (const char* format : {"auto", "smallest"}) {
    for (const auto& [module, linear] : planned(
             fmt::format(R"({{"default": {{"prune": "random", "sparsity": 1, "format": "{}"}}}})",
                         format),
             {.dtype = DType::f32})) {
      EXPECT_EQ(linear.format, "dense") << module;
    }
  }
}

// With narrow values: as the converter and an engine choose for a GPU, by the same rules.
TEST(RandomPlan, NarrowValuesAreInTheFormatThatGainsByThem) {
  constexpr Device kGpu{Device::Kind::cuda, 0};  // nothing runs, so it need not be there
  const auto formats = [](const char* format, double sparsity, const std::string& values,
                          const RandomPlanOptions& options) {
    const RandomLinears of_plan = planned(
        fmt::format(
            R"({{"default": {{"prune": "random", "sparsity": {}, "format": "{}", "values": "{}"}}}})",
            sparsity, format, values),
        options);
    RandomPlanOptions given = options;
    given.records = values;
    const RandomLinears of_option = planned(
        fmt::format(R"({{"default": {{"prune": "random", "sparsity": {}, "format": "{}"}}}})",
                    sparsity, format),
        given);
    EXPECT_EQ(of_plan, of_option);
    EXPECT_EQ(llama(of_plan, 0, "mlp.down_proj").records, values);
    return llama(of_plan, 0, "mlp.down_proj").format;
  };
  struct Case {
    const char* values;
    double sparsity;
    const char* fastest;
    const char* smallest;
  };
  for (const auto& [values, sparsity, fastest, smallest] :
       {Case{"i8", 0.0, "dense_i8", "dense_i8"}, Case{"i8", 0.25, "dense_i8", "tca_bme"},
        Case{"i8", 0.35, "tca_bme", "tca_bme"}, Case{"i8", 0.8, "tca_bme", "tca_bme"},
        Case{"f8", 0.0, "tca_bme", "tca_bme"}, Case{"f8", 0.5, "tca_bme", "tca_bme"},
        Case{"i4", 0.0, "dense_i4", "dense_i4"}, Case{"i4", 0.5, "dense_i4", "tca_bme"},
        Case{"i4:32", 0.0, "dense_i4", "dense_i4"}, Case{"i4:32", 0.8, "dense_i4", "tca_bme"}}) {
    SCOPED_TRACE(fmt::format("{} {}", values, sparsity));
    EXPECT_EQ(formats("auto", sparsity, values, {.device = kGpu}), fastest);
    EXPECT_EQ(formats("smallest", sparsity, values, {.device = kGpu}), smallest);
    EXPECT_EQ(formats("auto", sparsity, values, {.device = kGpu, .dtype = DType::f32}), "dense");
    // On the CPU by the rules of 16 bits.
    EXPECT_EQ(formats("auto", sparsity, values, {}), sparsity < 0.48 ? "dense" : "tca_bme");
  }
}

// What the plan names is kept, the rest is for an engine to choose.
TEST(RandomPlan, AGivenAutoIsOfWhatIsNotNamed) {
  const RandomLinears linears = planned(R"({"rules": [
      {"tensors": "*.o_proj", "prune": "none", "format": "dense"},
      {"tensors": "*.gate_proj", "prune": "2:8", "format": "tiled_csl"},
      {"tensors": "*.q_proj", "prune": "2:8", "format": "auto"},
      {"tensors": "*.k_proj", "prune": "2:8", "format": "dense"},
      {"tensors": "*.down_proj", "prune": "2:8", "format": "smallest"}]})",
                                        {.format = "auto"});
  EXPECT_EQ(llama(linears, 1, "self_attn.o_proj").format, "dense");
  EXPECT_EQ(llama(linears, 1, "mlp.gate_proj").format, "tiled_csl");
  EXPECT_EQ(llama(linears, 1, "mlp.up_proj").format, "tiled_csl");
  EXPECT_EQ(llama(linears, 1, "self_attn.q_proj").format, "auto");
  EXPECT_EQ(llama(linears, 1, "self_attn.k_proj").format, "auto");
  EXPECT_EQ(llama(linears, 1, "self_attn.v_proj").format, "auto");
  EXPECT_EQ(llama(linears, 1, "mlp.down_proj").format, "tca_bme");
}

TEST(RandomPlan, GivenPatternAndFormatGoBeforeIt) {
  const ZeroPattern outliers{.kind = ZeroPattern::Kind::outliers, .amount = 0.1};
  const RandomLinears linears = planned(
      R"({"rules": [{"tensors": "*.o_proj", "prune": "none", "format": "dense"}],
          "default": {"prune": "random", "scope": "matrix", "sparsity": 0.5}})",
      {.pattern = outliers, .format = "tiled_csl"});
  EXPECT_EQ(llama(linears, 1, "self_attn.o_proj"),
            (RandomLinear{.sparsity = 0.0, .pattern = {}, .format = "tiled_csl"}));
  EXPECT_EQ(llama(linears, 1, "mlp.up_proj"),
            (RandomLinear{.sparsity = 0.5, .pattern = outliers, .format = "tiled_csl"}));
}

TEST(RandomPlan, KeepsTheFormatsThatItNames) {
  for (const char* format : {"tiled_csl", "auto"}) {
    const RandomLinears linears = planned(
        R"({"rules": [{"tensors": "*.o_proj", "prune": "none", "format": "dense"}],
            "default": {"prune": "random", "scope": "matrix", "sparsity": 0.5}})",
        {.format = format, .keeps_formats = true});
    EXPECT_EQ(llama(linears, 1, "self_attn.o_proj"),
              (RandomLinear{.sparsity = 0.0, .pattern = {}, .format = "dense"}));
    EXPECT_EQ(llama(linears, 1, "mlp.up_proj"),
              (RandomLinear{.sparsity = 0.5, .pattern = {}, .format = format}));
  }
}

TEST(RandomPlan, RulesHaveToMatch) {
  EXPECT_TRUE(
      throws_error([] { planned(R"({"rules": [{"tensors": "*.fc1", "prune": "none"}]})"); },
                   R"(rule 1: the pattern "*.fc1" matches none of the model's 224 linear layers)"));
  EXPECT_TRUE(throws_error(
      [] { planned(R"({"rules": [{"tensors": "*", "layers": [0, 33], "prune": "none"}]})"); },
      "rule 1: "));
}

// Each part of a joined layer has its own share of zeros, the same number in each of its rows.
TEST(RandomPlan, IsWhatALoaderMakes) {
  constexpr int64_t kColumns = 120;
  RandomWeights weights{.dtype = DType::f16, .sparsity = 0.5, .seed = 7};
  weights.planned = {{"a.q", {.sparsity = 0.75, .pattern = kByRow, .format = "tca_bme"}},
                     {"a.k", {.sparsity = 0.0, .pattern = {}, .format = "tca_bme"}},
                     {"a.v", {.sparsity = 1.0, .pattern = kByRow, .format = "tca_bme"}}};
  RandomLoader loader({}, weights);
  const Linear joined =
      loader.linear({.parts = {{"a.q", 70}, {"a.k", 9}, {"a.v", 40}}, .in = kColumns});
  EXPECT_EQ(joined.weight->format(), "tca_bme");
  EXPECT_EQ(joined.weight->nonzeros(), 70 * 30 + 9 * 120);
  const std::vector<double> elements = elements_of(*joined.weight);
  for (int64_t row = 0; row < 119; ++row) {
    int64_t zeros = 0;
    for (int64_t column = 0; column < kColumns; ++column) {
      zeros += elements[static_cast<size_t>(row * kColumns + column)] == 0.0 ? 1 : 0;
    }
    EXPECT_EQ(zeros, row < 70 ? 90 : row < 79 ? 0 : 120) << row;
  }
  // The others are as ever.
  const Linear other = loader.linear({.parts = {{"b", 100}}, .in = kColumns});
  EXPECT_EQ(other.weight->format(), "dense");
  RandomLoader plain({}, {.dtype = DType::f16, .sparsity = 0.5, .seed = 7});
  const Linear same = plain.linear({.parts = {{"b", 100}}, .in = kColumns});
  EXPECT_EQ(elements_of(*other.weight), elements_of(*same.weight));
  EXPECT_EQ(loader.loaded_bytes() - plain.loaded_bytes(), joined.weight->bytes());

  const std::unique_ptr<WeightLoader> shapes = loader.shapes();
  const Linear shape =
      shapes->linear({.parts = {{"a.q", 70}, {"a.k", 9}, {"a.v", 40}}, .in = kColumns});
  EXPECT_EQ(shape.weight->format(), "tca_bme");
  EXPECT_EQ(shape.weight->nonzeros(), joined.weight->nonzeros());
  EXPECT_EQ(shapes->linear({.parts = {{"b", 100}}, .in = kColumns}).weight->format(), "dense");
}

TEST(RandomWeights, OtherFormatsOfTheSameZeros) {
  const RandomWeights weights{
      .sparsity = 0.5,
      .format = "auto",
      .planned = {{"a.q", {.sparsity = 0.75, .pattern = kByRow, .format = "auto"}}}};
  const RandomWeights one = in_format(weights, {"tiled_csl"});
  EXPECT_EQ(one.linear("b.weight"), (RandomLinear{.sparsity = 0.5, .format = "tiled_csl"}));
  EXPECT_EQ(one.linear("a.q.weight"),
            (RandomLinear{.sparsity = 0.75, .pattern = kByRow, .format = "tiled_csl"}));
  const RandomWeights some =
      in_formats(weights, {{"a.q.weight", {"tca_bme"}}, {"b.weight", {"dense"}}});
  EXPECT_EQ(some.linear("a.q.weight"),
            (RandomLinear{.sparsity = 0.75, .pattern = kByRow, .format = "tca_bme"}));
  EXPECT_EQ(some.linear("b.weight"), (RandomLinear{.sparsity = 0.5, .format = "dense"}));
  EXPECT_EQ(some.linear("c.weight").format, "auto");
  RandomLoader loader({}, some);
  EXPECT_TRUE(throws_error(
      [&] {
        loader.linear({.parts = {{"c", 8}}, .in = 8});
      },
      "the weight format auto is not known"));
}

TEST(RandomPlan, WhatCannotBeIsRefusedByName) {
  RandomWeights weights;
  weights.planned = {
      {"a.q", {.sparsity = 0.9, .pattern = {.kind = ZeroPattern::Kind::outliers, .amount = 0.5}}}};
  EXPECT_TRUE(throws_error([&] { RandomLoader({}, weights); },
                           "a.q: random weights have no pattern outliers:0.5: a share"));
  weights.planned = {{"a.q", {.sparsity = std::nan("")}}};
  EXPECT_TRUE(throws_error([&] { RandomLoader({}, weights); }, "a.q: the sparsity"));
}

}  // namespace
}  // namespace sparsellm
