// Which formats "auto" and "smallest" choose, and what models become of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sparse/registry.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/synthetic_model.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::convert;
using testing::expect_same_weights;
using testing::greedy;
using testing::load;
using testing::Model;
using testing::plan;
using testing::TempDir;

int64_t model_bytes(const Conversion& conversion) {
  return conversion.bytes() + conversion.other_bytes;
}

// Widths that fill records of 128 columns, and those that do not.
TEST(ConvertSmallest, NoModelIsLargerThanOneWithFewerZeros) {
  for (const auto& [hidden, intermediate] : {std::pair{256, 384}, {64, 192}, {100, 130}}) {
    SCOPED_TRACE(hidden);
    const TempDir directory;
    testing::write_synthetic_model(directory.path() / "in",
                                   {.hidden = hidden, .intermediate = intermediate, .blocks = 1});
    for (const PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
      int64_t bytes = std::numeric_limits<int64_t>::max();
      uintmax_t file = std::numeric_limits<uintmax_t>::max();
      for (int percent = 50; percent <= 95; percent += 3) {
        const fs::path output = directory.path() / "out";
        const Conversion conversion = convert(
            directory.path() / "in", output, plan("magnitude", percent / 100.0, "smallest", scope),
            [](ConvertOptions& options) { options.replace = true; });
        EXPECT_LE(model_bytes(conversion), bytes) << percent << " %";
        EXPECT_LE(fs::file_size(output / "model.safetensors"), file) << percent << " %";
        bytes = model_bytes(conversion);
        file = fs::file_size(output / "model.safetensors");
      }
    }
  }
}

TEST(ConvertSmallest, IsNeverLargerThanAnyFormat) {
  const TempDir directory;
  testing::write_synthetic_model(directory.path() / "in",
                                 {.hidden = 256, .intermediate = 384, .blocks = 1});
  for (const double sparsity : {0.0, 0.1, 0.5, 0.79, 0.9, 0.97, 1.0}) {
    const ConvertOptions options{.input = directory.path() / "in",
                                 .output = {},
                                 .plan = plan("magnitude", sparsity, "smallest"),
                                 .threads = 2};
    const std::vector<Inspection> inspections = inspect_model(options);
    const auto weights_as = [&](std::string_view format) {
      return std::find_if(inspections.begin(), inspections.end(),
                          [&](const Inspection& as) { return as.format == format; })
          ->conversion.weights;
    };
    const std::vector<ConvertedWeight> smallest = weights_as("smallest");
    for (const WeightFormat* format : smallest_formats()) {
      const std::vector<ConvertedWeight> as = weights_as(format->name());
      for (size_t i = 0; i < as.size(); ++i) {
        EXPECT_LE(smallest[i].bytes, as[i].bytes) << format->name() << " " << sparsity;
      }
    }
    EXPECT_EQ(inspections.front().conversion.bytes(), inspections[2].conversion.bytes());
  }
}

// In other layouts than those which are the fastest, the model is the same.
TEST(ConvertSmallest, TheModelIsTheSame) {
  const fs::path input = testing::data("models/fable-llama-relu-8m");
  const TempDir directory;
  const auto out = [&](const std::string& name) { return directory.path() / name; };
  for (const double sparsity : {0.79, 0.9}) {
    const auto to = [&](const std::string& format) {
      convert(input, out(format), plan("magnitude", sparsity, format), [](ConvertOptions& options) {
        options.verify = true;
        options.replace = true;
      });
      return out(format);
    };
    to("dense");
    const Model expected(out("dense"));
    Engine dense = load(out("dense"), {}, false);
    const std::vector<int32_t> tokens = greedy(dense);
    for (const std::string format : {"auto", "smallest", "tca_bme"}) {
      SCOPED_TRACE(format);
      const Model model(to(format));
      expect_same_weights(expected, model);
      EXPECT_EQ(model.stored(model.layers.front()).format,
                format == "smallest" && sparsity > 0.85 ? "tiled_csl" : "tca_bme");
      Engine engine = load(out(format), {}, false);
      EXPECT_EQ(greedy(engine), tokens);
    }
    const auto bytes = [&](const std::string& format) {
      return fs::file_size(out(format) / "model.safetensors");
    };
    EXPECT_LT(bytes("smallest"), bytes("tca_bme"));
    testing::expect_same_bytes(out("auto"), out("tca_bme"));  // the fastest layout
    // The layout is a choice of each conversion, whatever the one before chose.
    for (const auto& [from, format] : {std::pair{"smallest", "tca_bme"}, {"tca_bme", "smallest"}}) {
      convert(out(from), out("on"), plan("none", 0, format),
              [](ConvertOptions& options) { options.replace = true; });
      testing::expect_same_bytes(out(format), out("on"));
    }
  }
}

// Of the formats that a plan leaves open, too; the model is the same.
TEST(ConvertRecords, ForSizeTakeFewerBytes) {
  const fs::path input = testing::data("models/fable-llama-relu-8m");
  const TempDir directory;
  const auto out = [&](const std::string& name) { return directory.path() / name; };
  const auto to = [&](const std::string& format, const std::string& records) {
    const fs::path output = out(format + "-" + records);
    convert(input, output,
            SparsityPlan::uniform({.method = parse_prune_method("magnitude"), .sparsity = 0.8},
                                  format, records),
            [](ConvertOptions& options) { options.verify = true; });
    return output;
  };
  const fs::path fast = to("tca_bme", "speed");
  testing::expect_same_bytes(to("tca_bme", ""), fast);
  const fs::path small = to("tca_bme", "size");
  testing::expect_same_bytes(to("auto", "size"), small);
  testing::expect_same_bytes(to("auto", "speed"), fast);
  const auto bytes = [](const fs::path& model) {
    return fs::file_size(model / "model.safetensors");
  };
  EXPECT_LT(bytes(small), bytes(fast));
  EXPECT_LE(bytes(to("smallest", "size")), bytes(small));
  const Model model(small);
  expect_same_weights(Model(fast), model);
  Engine of_fast = load(fast, {}, false);
  Engine of_small = load(small, {}, false);
  EXPECT_EQ(greedy(of_fast), greedy(of_small));
  // From one to the other.
  for (const auto& [from, records, expected] :
       {std::tuple{fast, "size", small}, {small, "speed", fast}}) {
    convert(from, out("on"), SparsityPlan::uniform({}, "tca_bme", records),
            [](ConvertOptions& options) { options.replace = true; });
    testing::expect_same_bytes(expected, out("on"));
  }
}

class ConvertAuto : public ::testing::Test {
 protected:
  // A block with matrices of which a 70th is zeros.
  void SetUp() override {
    testing::write_synthetic_model(
        input(), {.hidden = 256, .intermediate = 320, .blocks = 1, .density = 0.985});
  }
  fs::path input() const { return directory_.path() / "in"; }
  fs::path rules(std::string_view text) const { return directory_.write("rules.json", text); }

  // Formats and reasons by the last part of the module's name.
  std::map<std::string, std::string> formats(SparsityPlan plan, const std::string& rules = {}) {
    const Conversion conversion =
        convert(input(), directory_.path() / "out", std::move(plan), [&](ConvertOptions& options) {
          options.replace = true;
          if (!rules.empty()) {
            options.rules = FormatRules::read(rules);
          }
        });
    std::map<std::string, std::string> found;
    for (const ConvertedWeight& weight : conversion.weights) {
      const std::string kind = kind_of(weight.layer);
      found[kind.substr(kind.find('.') + 1)] =
          weight.why_dense.empty() ? weight.format : weight.format + ": " + weight.why_dense;
    }
    return found;
  }
  std::set<std::string> all_formats(SparsityPlan plan, const std::string& rules = {}) {
    std::set<std::string> all;
    for (const auto& [module, format] : formats(std::move(plan), rules)) {
      all.insert(format);
    }
    return all;
  }

 private:
  TempDir directory_;
};

TEST_F(ConvertAuto, TakesWhatTheRulesSayOfTheDensityThatPruningLeaves) {
  using Found = std::set<std::string>;
  const Found dense{"dense: faster dense on NVIDIA H200, by the rules for 8 tokens"};
  EXPECT_EQ(all_formats(plan("none", 0, "auto")), dense);
  EXPECT_EQ(all_formats(plan("magnitude", 0.3, "auto")), dense);
  EXPECT_EQ(all_formats(plan("magnitude", 0.6, "auto")), Found{"tca_bme"});
  EXPECT_EQ(all_formats(plan("2:4", 0, "auto")), Found{"tca_bme"});
  EXPECT_EQ(all_formats(plan("1:1", 0, "auto")), dense);
}

TEST_F(ConvertAuto, RulesAreReplaced) {
  const std::string file = rules(R"({"gpu": "Some GPU", "rules": [
    {"density": [0.45, 1], "format": "tca_bme"}, {"tokens": [8, 8], "format": "tiled_csl"}]})");
  using Found = std::set<std::string>;
  EXPECT_EQ(all_formats(plan("magnitude", 0.6, "auto"), file), Found{"tiled_csl"});
  EXPECT_EQ(all_formats(plan("magnitude", 0.5, "auto"), file), Found{"tca_bme"});
  // Rules that are wrong make nothing larger.
  EXPECT_EQ(all_formats(plan("none", 0, "auto"), file), Found{"dense: no smaller as tca_bme"});
}

// q has 128 x 256 elements, k and v half as many, gate and up 320 x 256 each: it is the joined size
// that counts.
TEST_F(ConvertAuto, JoinedLayersHaveOneFormat) {
  const std::string by_size = rules(R"({"gpu": "G", "rules": [
    {"elements": [50000, 70000], "format": "tca_bme"},
    {"elements": [100000, 1000000], "format": "tca_bme"}]})");
  const std::map<std::string, std::string> found = formats(plan("magnitude", 0.6, "auto"), by_size);
  const std::string dense = "dense: faster dense on G, by the rules for 8 tokens";
  EXPECT_EQ(found, (std::map<std::string, std::string>{{"q_proj", "tca_bme"},
                                                       {"k_proj", "tca_bme"},
                                                       {"v_proj", "tca_bme"},
                                                       {"o_proj", dense},
                                                       {"gate_proj", "tca_bme"},
                                                       {"up_proj", "tca_bme"},
                                                       {"down_proj", dense}}));
  // 60 and 90 % zeros in k and v, on average less than half.
  const std::string plan_file = rules(R"({"rules": [
    {"tensors": "*.k_proj", "prune": "magnitude", "sparsity": 0.6},
    {"tensors": "*.v_proj", "prune": "magnitude", "sparsity": 0.9, "format": "tca_bme"}]})");
  const std::map<std::string, std::string> mixed = formats(SparsityPlan::read(plan_file));
  const std::string dense_h200 = "dense: faster dense on NVIDIA H200, by the rules for 8 tokens";
  EXPECT_EQ(mixed.at("q_proj"), mixed.at("k_proj"));
  EXPECT_EQ(mixed.at("v_proj"), "tca_bme");  // as the plan says
  EXPECT_EQ(mixed.at("o_proj"), dense_h200);
  // The gate, which has no zeros, is in the format of both: with "up" they gain by it.
  const SparsityPlan one_is_full = SparsityPlan::read(rules(R"({"rules": [
    {"tensors": "*.gate_proj", "prune": "none"},
    {"tensors": "*.up_proj", "prune": "magnitude", "sparsity": 0.99}]})"));
  const std::map<std::string, std::string> gated =
      formats(one_is_full, rules(R"({"gpu": "G", "rules": [
        {"density": [0, 0.6], "format": "tca_bme"}]})"));
  EXPECT_EQ(gated.at("gate_proj"), "tca_bme");
  EXPECT_EQ(gated.at("up_proj"), "tca_bme");
  EXPECT_EQ(gated.at("q_proj"), "dense: faster dense on G, by the rules for 8 tokens");
}

}  // namespace
}  // namespace sparsellm
