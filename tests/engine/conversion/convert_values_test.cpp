// Conversions that round weights to narrow values: what is stored, what is said of it, and what the
// engine makes of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/conversion/encode_planned.h"
#include "engine/format_selection.h"
#include "sparse/narrow_encoding.h"
#include "sparse/quantize/quantize.h"
#include "sparse/records_choice.h"
#include "tests/engine/check_reference.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/synthetic_model.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::GuardedTensor;
using testing::Model;
using testing::set_values;
using testing::TempDir;
using testing::throws_error;
using testing::values_of;
using testing::verified;

constexpr const char* kValues[] = {"i8", "f8", "i4", "i4:32", "i4:64"};

// A format with narrow values, and what is chosen of them.
struct NarrowFormat {
  std::string format;
  std::string chosen;

  std::string values() const {
    return !chosen.empty() ? chosen : format == "dense_i8" ? "i8" : "i4";
  }
  std::string name() const { return format + chosen; }
};
std::vector<NarrowFormat> narrow_formats() {
  std::vector<NarrowFormat> formats;
  for (const char* values : kValues) {
    formats.push_back({"tca_bme", values});
  }
  formats.push_back({"dense_i8", ""});
  formats.push_back({"dense_i8", "i8"});
  formats.push_back({"dense_i4", ""});
  formats.push_back({"dense_i4", "i4:64"});
  return formats;
}

fs::path fable() { return testing::data("models/fable-llama-relu-8m"); }

SparsityPlan plan_of(double sparsity, const std::string& format, const std::string& values) {
  PruneSettings settings;
  if (sparsity > 0.0) {
    settings = {.method = parse_prune_method("magnitude"), .sparsity = sparsity};
  }
  return SparsityPlan::uniform(settings, format, values);
}

QuantizedMatrix rounded(const Tensor& w, std::string_view values) {
  ThreadPool threads(2);
  const std::string_view type = values.substr(0, 2);
  const int64_t group =
      values.size() > 2 ? std::stoi(std::string(values.substr(3))) : kDefaultValueGroup;
  return quantize(w, parse_value_type(type), group, threads);
}

// "i4" is stored as what it stands for.
std::string stored_as(std::string_view values) {
  return values == "i4" ? "i4:128" : std::string(values);
}

// The model in `output` has the weights of `pruned`, rounded.
void expect_rounded(const Model& pruned, const Model& output, const Conversion& conversion,
                    const NarrowFormat& in) {
  ThreadPool threads(2);
  const std::string values = in.values();
  ASSERT_EQ(conversion.weights.size(), pruned.layers.size());
  for (size_t i = 0; i < pruned.layers.size(); ++i) {
    const LinearLayer& layer = pruned.layers[i];
    SCOPED_TRACE(layer.module);
    const OwnedTensor before = pruned.dense(layer);
    const QuantizedMatrix q = rounded(before.view, values);
    const OwnedTensor expected = dequantize(q, before.view.dtype(), threads);
    const EncodedWeight stored = output.store.encoded(layer.module + ".weight", threads);
    EXPECT_EQ(stored.format, in.format);
    EXPECT_EQ(stored.version, in.format == "tca_bme" ? 3 : 1);
    EXPECT_EQ(type_of_values(stored), stored_as(values));
    EXPECT_EQ(values_of(output.dense(layer).view), values_of(expected.view));

    const ConvertedWeight& weight = conversion.weights[i];
    EXPECT_EQ(weight.values, stored_as(values));
    EXPECT_EQ(weight.bytes, stored.bytes());
    EXPECT_EQ(weight.nonzeros, stored.nonzeros);
    ASSERT_TRUE(weight.rounded.has_value());
    const QuantizationError error = quantization_error(before.view, q, threads);
    EXPECT_EQ(weight.rounded->error.squared_error, error.squared_error);
    EXPECT_EQ(weight.rounded->error.lost, error.lost);
    EXPECT_EQ(error.nonzeros - error.lost, stored.nonzeros);
  }
}

class ConvertValues : public ::testing::TestWithParam<fs::path> {
 protected:
  fs::path out(const std::string& name) const { return directory_.path() / name; }
  const fs::path& input() const { return GetParam(); }

 private:
  TempDir directory_;
};
std::vector<fs::path> inputs() {
  std::vector<fs::path> paths = testing::tiny_checkpoints();
  paths.push_back(fable());
  return paths;
}
std::string test_name(const ::testing::TestParamInfo<fs::path>& checkpoint) {
  std::string name = checkpoint.param.filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, ConvertValues, ::testing::ValuesIn(inputs()), test_name);

TEST_P(ConvertValues, AreThoseOfThePrunedWeightsAndLoad) {
  const Model before(input());
  if (before.stored(before.layers.front()).dtype == DType::f32) {
    EXPECT_TRUE(
        throws_error([&] { convert(input(), out("x"), plan_of(0.5, "tca_bme", "i8")); },
                     "cannot be stored as tca_bme: tca_bme holds f16 and bf16 values, not f32"));
    EXPECT_FALSE(fs::exists(out("x")));
    convert(input(), out("f16"), plan_of(0, "dense", {}),
            [](ConvertOptions& options) { options.dtype = DType::f16; });
  }
  const fs::path from = fs::exists(out("f16")) ? out("f16") : input();
  convert(from, out("pruned"), plan_of(0.5, "dense", {}));
  const Model pruned(out("pruned"));
  for (const NarrowFormat& in : narrow_formats()) {
    SCOPED_TRACE(in.name());
    if (input() == fable() && in.format != "tca_bme" && !in.chosen.empty()) {
      continue;
    }
    const fs::path output = out(in.name());
    const Conversion conversion =
        convert(from, output, plan_of(0.5, in.format, in.chosen), verified);
    const Model model(output);
    expect_rounded(pruned, model, conversion, in);
    testing::expect_same_others(pruned, model);
    EXPECT_EQ(conversion.narrow_values(), std::set<std::string>{stored_as(in.values())});
    if (in.chosen == "i4:32" || (input() == fable() && in.chosen != "i8")) {
      continue;  // two of them are enough to see that they load
    }
    // As a dense model with the same values has it.
    convert(output, out("dense"), plan_of(0, "dense", {}),
            [](ConvertOptions& options) { options.replace = true; });
    Engine narrow = testing::load(output, {}, false);
    Engine dense = testing::load(out("dense"), {}, false);
    EXPECT_EQ(testing::greedy(narrow), testing::greedy(dense));
  }
}

// A load that rounds is a conversion and a load.
TEST_P(ConvertValues, OfALoadAreThoseOfAConversion) {
  if (input() == fable()) {
    GTEST_SKIP() << "the small models are enough";
  }
  const Model before(input());
  if (before.stored(before.layers.front()).dtype == DType::f32) {
    GTEST_SKIP() << "tca_bme does not hold f32";
  }
  for (const NarrowFormat& in : {NarrowFormat{"tca_bme", "i8"}, NarrowFormat{"tca_bme", "i4:64"},
                                 NarrowFormat{"dense_i8", ""}, NarrowFormat{"dense_i4", "i4:32"}}) {
    SCOPED_TRACE(in.name());
    convert(input(), out(in.name()), plan_of(0, in.format, in.chosen));
    Engine converted = testing::load(out(in.name()), {}, false);
    EngineOptions options;
    options.context_size = testing::kContext;
    options.weight_format = in.format;
    options.records = in.chosen;
    options.with_tokenizer = false;
    Engine loaded = Engine::load(input(), options);
    EXPECT_EQ(testing::greedy(loaded), testing::greedy(converted));
  }
}

// What a model in this format and with these narrow values is: the formats of its weights by the
// last part of the module's name.
class ConvertValuesFormat : public ::testing::Test {
 protected:
  using Formats = std::map<std::string, std::string>;

  void SetUp() override {
    testing::write_synthetic_model(input(), {.hidden = 256, .intermediate = 384, .blocks = 1});
  }
  fs::path input() const { return directory_.path() / "in"; }
  fs::path output() const { return directory_.path() / "out"; }
  std::string write(std::string_view text) const { return directory_.write("file.json", text); }

  Conversion to(const SparsityPlan& plan,
                const std::function<void(ConvertOptions&)>& change = {}) const {
    return convert(input(), output(), plan, [&](ConvertOptions& options) {
      options.replace = true;
      options.verify = true;
      if (change) {
        change(options);
      }
    });
  }
  static Formats formats_of(const Conversion& conversion) {
    Formats formats;
    for (const ConvertedWeight& weight : conversion.weights) {
      formats[weight.layer.module.substr(weight.layer.module.rfind('.') + 1)] = weight.format;
    }
    return formats;
  }
  static std::set<std::string> all_formats(const Conversion& conversion) {
    std::set<std::string> all;
    for (const auto& [module, format] : formats_of(conversion)) {
      all.insert(format);
    }
    return all;
  }

 private:
  TempDir directory_;
};

// Narrow values save bytes whatever the zeros; bits for positions do where there are enough zeros.
TEST_F(ConvertValuesFormat, SmallestIsThatOfFewestBytes) {
  for (const auto& [sparsity, values, format] : {std::tuple{0.0, "i8", "dense_i8"},
                                                 {0.0, "f8", "tca_bme"},
                                                 {0.0, "i4", "dense_i4"},
                                                 {0.0, "i4:32", "dense_i4"},
                                                 {0.5, "i8", "tca_bme"},
                                                 {0.5, "f8", "tca_bme"},
                                                 {0.5, "i4", "tca_bme"},
                                                 {0.98, "i4:32", "tca_bme"}}) {
    SCOPED_TRACE(fmt::format("{} {}", sparsity, values));
    const Conversion smallest = to(plan_of(sparsity, "smallest", values));
    EXPECT_EQ(all_formats(smallest), std::set<std::string>{format});
    for (const ConvertedWeight& weight : smallest.weights) {
      EXPECT_EQ(weight.values, stored_as(values));
      EXPECT_TRUE(weight.rounded.has_value());
      EXPECT_LT(weight.bytes, weight.dense_bytes);
    }
    for (const WeightFormat* other : formats_with_values(values)) {
      const Conversion as = to(plan_of(sparsity, std::string(other->name()), values));
      EXPECT_LE(smallest.bytes(), as.bytes()) << other->name();
    }
  }
}

// Between, where small weights that become zeros decide, too.
TEST_F(ConvertValuesFormat, SmallestIsNeverLargerThanEither) {
  for (const double sparsity : {0.05, 0.1, 0.15, 0.2, 0.25}) {
    for (const std::string values : {"i8", "i4"}) {
      SCOPED_TRACE(fmt::format("{} {}", sparsity, values));
      const Conversion smallest = to(plan_of(sparsity, "smallest", values));
      for (const WeightFormat* other : formats_with_values(values)) {
        const Conversion as = to(plan_of(sparsity, std::string(other->name()), values));
        for (size_t i = 0; i < as.weights.size(); ++i) {
          const std::string kind = as.weights[i].layer.module;
          if (kind.ends_with("o_proj") || kind.ends_with("down_proj")) {
            EXPECT_LE(smallest.weights[i].bytes, as.weights[i].bytes) << kind;
          }
        }
      }
    }
  }
}

// Joined while they are loaded, parts in several formats would become 16 bits wide.
TEST_F(ConvertValuesFormat, SmallestOfJoinedLayersIsOne) {
  const SparsityPlan plan = SparsityPlan::read(write(R"({"rules": [
      {"tensors": ["*.k_proj", "*.gate_proj"], "prune": "magnitude", "sparsity": 0.9,
       "format": "smallest", "values": "i8"}],
      "default": {"prune": "none", "format": "smallest", "values": "i8"}})"));
  EXPECT_EQ(formats_of(to(plan)), (Formats{{"q_proj", "tca_bme"},
                                           {"k_proj", "tca_bme"},
                                           {"v_proj", "tca_bme"},
                                           {"o_proj", "dense_i8"},
                                           {"gate_proj", "tca_bme"},
                                           {"up_proj", "tca_bme"},
                                           {"down_proj", "dense_i8"}}));
  convert(output(), input().parent_path() / "wide", plan_of(0, "dense", {}));
  Engine narrow = testing::load(output(), {}, false);
  Engine wide = testing::load(input().parent_path() / "wide", {}, false);
  EXPECT_EQ(testing::greedy(narrow), testing::greedy(wide));
}

// Alone, keys and values have so few rows that nothing would save bytes.
TEST_F(ConvertValuesFormat, SmallestOfSmallPartsIsThatOfTheLayer) {
  const fs::path small = input().parent_path() / "small";
  testing::write_synthetic_model(small,
                                 {.hidden = 256, .intermediate = 384, .blocks = 1, .head_dim = 16});
  for (const std::string values : {"i8", "i4"}) {
    const Conversion conversion =
        convert(small, output(), plan_of(0, "smallest", values),
                [](ConvertOptions& options) { options.replace = options.verify = true; });
    const std::string narrow = "dense_" + values;
    EXPECT_EQ(formats_of(conversion), (Formats{{"q_proj", narrow},
                                               {"k_proj", narrow},
                                               {"v_proj", narrow},
                                               {"o_proj", "tca_bme"},  // of 32 columns
                                               {"gate_proj", narrow},
                                               {"up_proj", narrow},
                                               {"down_proj", narrow}}));
  }
}

// What is joined while it is loaded has the values that are stored, in whatever formats these are.
TEST_F(ConvertValuesFormat, JoinedPartsAreNotRoundedByALoad) {
  for (const std::string rules : {
           R"({"tensors": "*.q_proj", "prune": "none", "format": "dense_i4"})",
           R"({"tensors": "*.q_proj", "prune": "none", "values": "i4"},
              {"tensors": "*.k_proj", "prune": "none", "values": "i8"})",
           R"({"tensors": "*.gate_proj", "prune": "none", "format": "dense_i4", "values": "i4"},
              {"tensors": "*.up_proj", "prune": "none", "format": "dense_i4", "values": "i4:32"})",
           R"({"tensors": "*.gate_proj", "prune": "none", "format": "dense_i8"},
              {"tensors": "*.up_proj", "prune": "magnitude", "sparsity": 0.6,
               "format": "tca_bme"})",
           R"({"tensors": "*.gate_proj", "prune": "none", "format": "dense_i4"},
              {"tensors": "*.up_proj", "prune": "none", "format": "tca_bme", "values": "f8"})",
           R"({"tensors": "*.gate_proj", "prune": "none", "format": "tca_bme", "values": "i8"},
              {"tensors": "*.up_proj", "prune": "none", "format": "dense_i8"})",
       }) {
    SCOPED_TRACE(rules);
    to(SparsityPlan::read(
        write(R"({"default": {"prune": "none", "format": "dense"}, "rules": [)" + rules + "]}")));
    const fs::path wide = input().parent_path() / "wide";
    convert(output(), wide, plan_of(0, "dense", {}),
            [](ConvertOptions& options) { options.replace = true; });
    Engine dense = testing::load(wide, {}, false);
    const std::vector<int32_t> text{3, 7, 5, 11, 25, 31, 8, 8, 1};
    const testing::LogitRows expected = testing::score(dense, text);
    // Where formats are chosen, a layer is taken as it is stored only if its parts are alike.
    const Model model(output());
    const WeightOrigin origin = stored_origin(model.store, DType::f16, {});
    const std::string_view first =
        rules.find("q_proj") != std::string::npos ? "q_proj" : "gate_proj";
    int mixed = 0;
    for (const JoinedLinear& layer : joined_linear_layers(model.config)) {
      if (layer.parts.front().module.ends_with(first)) {
        EXPECT_EQ(origin.weight_of(layer).stored, "");
        ++mixed;
      }
    }
    EXPECT_EQ(mixed, 1);
    for (const std::string format : {"", "auto"}) {
      Engine stored = testing::load(output(), format, false);
      testing::expect_near(testing::score(stored, text), expected, 1e-5f);
    }
  }
}

// What is stored in tca_bme keeps its values, also joined with others of another type: in 16 bits.
TEST_F(ConvertValuesFormat, SeveralTypesInBitmapsCountAsStored) {
  for (const std::string up : {"i8", "f8"}) {
    to(SparsityPlan::read(write(R"({"rules": [
        {"tensors": "*.gate_proj", "prune": "none", "format": "tca_bme", "values": "i8"},
        {"tensors": "*.up_proj", "prune": "none", "format": "tca_bme", "values": ")" +
                                up + R"("}], "default": {"prune": "none", "format": "dense"}})")));
    const Model model(output());
    const WeightOrigin origin = stored_origin(model.store, DType::f16, {});
    const std::vector<JoinedLinear> layers = joined_linear_layers(model.config);
    const auto gate_up = std::ranges::find_if(layers, [](const auto& layer) {
      return layer.first_weight().find("gate_proj") != std::string::npos;
    });
    ASSERT_NE(gate_up, layers.end());
    const LayerWeight weight = origin.weight_of(*gate_up);
    EXPECT_EQ(weight.stored, "tca_bme");
    EXPECT_EQ(weight.stored_bytes > 0, up == "i8");
  }
}

// Rules of 16 bits say nothing of them.
TEST_F(ConvertValuesFormat, AutoIsThatWhichGainsByThem) {
  const std::string rules =
      write(R"({"gpu": "a test", "rules": [{"density": [0, 0.1], "format": "tiled_csl"}]})");
  for (const auto& [sparsity, values, format] : {std::tuple{0.0, "i8", "dense_i8"},
                                                 {0.25, "i8", "dense_i8"},
                                                 {0.4, "i8", "tca_bme"},
                                                 {0.5, "i8", "tca_bme"},
                                                 {0.95, "i8", "tca_bme"},
                                                 {0.0, "f8", "tca_bme"},
                                                 {0.5, "f8", "tca_bme"},
                                                 {0.0, "i4", "dense_i4"},
                                                 {0.5, "i4", "dense_i4"},
                                                 {0.8, "i4", "dense_i4"},
                                                 {0.5, "i4:32", "dense_i4"}}) {
    SCOPED_TRACE(fmt::format("{} {}", sparsity, values));
    const Conversion conversion =
        to(plan_of(sparsity, "auto", values),
           [&](ConvertOptions& options) { options.rules = FormatRules::read(rules); });
    EXPECT_EQ(all_formats(conversion), std::set<std::string>{format});
    EXPECT_EQ(conversion.narrow_values(), std::set<std::string>{stored_as(values)});
    EXPECT_EQ(formats_of(to(plan_of(sparsity, "auto", values))), formats_of(conversion));
  }
  // Without --values nothing is rounded.
  EXPECT_EQ(all_formats(to(plan_of(0.5, "auto", {}))), std::set<std::string>{"tca_bme"});
  const Conversion plain = to(plan_of(0.0, "auto", {}));
  EXPECT_EQ(all_formats(plain), std::set<std::string>{"dense"});
  EXPECT_TRUE(plain.narrow_values().empty());
}

// Where nothing is measured, a load for a GPU rounds to what a conversion would store.
TEST_F(ConvertValuesFormat, AutoOfALoadIsThatOfTheConversion) {
  const fs::path pruned = input().parent_path() / "pruned";
  for (const double sparsity : {0.0, 0.25, 0.4, 0.5, 0.8}) {
    convert(input(), pruned, plan_of(sparsity, "dense", {}),
            [](ConvertOptions& options) { options.replace = true; });
    const ModelConfig config = read_model_config(pruned);
    const Checkpoint checkpoint(pruned);
    for (const std::string values : {"", "i8", "f8", "i4", "i4:32"}) {
      SCOPED_TRACE(fmt::format("{} {}", sparsity, values));
      const Formats converted = formats_of(to(plan_of(sparsity, "auto", values)));
      EngineOptions options;
      options.device = kPlannedGpu;  // only the choice is
      options.context_size = testing::kContext;
      options.decode_tokens = {kDecodedTokens};
      options.weight_format = "auto";
      options.records = values;
      for (const FormatChoice& choice : select_formats(config, checkpoint, options)) {
        EXPECT_EQ(choice.by, FormatChoice::By::rules);
        for (const LinearLayer& part : choice.kind.layer.parts) {
          EXPECT_EQ(choice.in.format, converted.at(part.module.substr(part.module.rfind('.') + 1)));
        }
        EXPECT_EQ(choice.in.layout, choice.in.format == "dense" ? "" : values);
      }
    }
  }
}

TEST(ConvertValuesPlan, EachRuleHasItsOwn) {
  const TempDir directory;
  const std::string file = directory.write("plan.json", R"({
    "rules": [{"tensors": "*.mlp.*", "prune": "magnitude", "sparsity": 0.6, "format": "tca_bme",
               "values": "i4:64"},
              {"tensors": "*.o_proj", "prune": "none", "format": "tca_bme"}],
    "default": {"prune": "none", "format": "smallest", "values": "f8"}})");
  const fs::path output = directory.path() / "out";
  const Conversion conversion = convert(fable(), output, SparsityPlan::read(file), verified);
  for (const ConvertedWeight& weight : conversion.weights) {
    const std::string& module = weight.layer.module;
    EXPECT_EQ(weight.values, module.find("mlp") != std::string::npos      ? "i4:64"
                             : module.find("o_proj") != std::string::npos ? "f16"
                                                                          : "f8");
    // Of what was not pruned here there is nothing to compare with.
    EXPECT_EQ(weight.rounded && weight.rounded->pruned_squares > 0.0,
              module.find("mlp") != std::string::npos);
  }
  EXPECT_EQ(conversion.narrow_values(), (std::set<std::string>{"f8", "i4:64"}));
  Engine engine = testing::load(output, {}, false);
  EXPECT_EQ(testing::greedy(engine).size(), testing::greedy(engine).size());
}

// The sum of squares that pruning took away.
TEST(ConvertValuesReport, ComparesWithPruning) {
  const TempDir directory;
  convert(fable(), directory.path() / "pruned", plan_of(0.6, "dense", {}));
  const Conversion conversion =
      convert(fable(), directory.path() / "out", plan_of(0.6, "tca_bme", "i4"));
  const Model before(fable());
  const Model pruned(directory.path() / "pruned");
  for (size_t i = 0; i < before.layers.size(); ++i) {
    const std::vector<double> all = values_of(before.dense(before.layers[i]).view);
    const std::vector<double> left = values_of(pruned.dense(before.layers[i]).view);
    double removed = 0.0;
    for (size_t k = 0; k < all.size(); ++k) {
      removed += left[k] == 0.0 ? all[k] * all[k] : 0.0;
    }
    EXPECT_GT(removed, 0.0);
    EXPECT_NEAR(conversion.weights[i].rounded->pruned_squares, removed, 1e-9 * removed);
  }
}

TEST(ConvertValuesInspection, IsThatOfTheConversion) {
  const TempDir directory;
  const fs::path input = directory.path() / "in";
  testing::write_synthetic_model(input, {.hidden = 256, .intermediate = 384, .blocks = 1});
  for (const std::string format : {"tca_bme", "smallest", "auto"}) {
    SCOPED_TRACE(format);
    const SparsityPlan narrow = plan_of(0.6, format, "i4");
    const Conversion conversion = convert(input, directory.path() / "out", narrow,
                                          [](ConvertOptions& options) { options.replace = true; });
    const std::vector<Inspection> inspections =
        inspect_model({.input = input, .output = {}, .plan = narrow, .threads = 2});
    const std::vector<Inspection> without = inspect_model(
        {.input = input, .output = {}, .plan = plan_of(0.6, format, {}), .threads = 2});
    EXPECT_EQ(inspections.front().conversion.bytes(), conversion.bytes());
    EXPECT_EQ(inspections.front().conversion.narrow_values(), std::set<std::string>{"i4:128"});
    EXPECT_LT(conversion.bytes(), without.front().conversion.bytes());
    for (size_t i = 1; i < inspections.size(); ++i) {
      EXPECT_EQ(inspections[i].conversion.bytes(), without[i].conversion.bytes());
      EXPECT_TRUE(inspections[i].conversion.narrow_values().empty());
    }
  }
}

// Without being asked to, a comparison of formats rounds nothing.
TEST(ConvertValuesInspection, RoundsForWhatIsPlannedAlone) {
  const TempDir directory;
  const fs::path input = directory.path() / "in";
  testing::write_synthetic_model(input, {.hidden = 256, .intermediate = 384, .blocks = 1});
  const SparsityPlan plan = plan_of(0.6, "dense_i8", {});
  const Conversion conversion = convert(input, directory.path() / "out", plan);
  const std::vector<Inspection> inspections =
      inspect_model({.input = input, .output = {}, .plan = plan, .threads = 2});
  EXPECT_EQ(inspections.front().conversion.bytes(), conversion.bytes());
  EXPECT_EQ(inspections.front().conversion.narrow_values(), std::set<std::string>{"i8"});
  for (size_t i = 1; i < inspections.size(); ++i) {
    EXPECT_TRUE(inspections[i].conversion.narrow_values().empty()) << inspections[i].format;
  }
}

TEST(ConvertValuesConfig, NamesTheTypesUntilThereAreNone) {
  const TempDir directory;
  const fs::path input = testing::data("tiny/llama3");
  const auto config = [](const fs::path& model) {
    return nlohmann::json::parse(contents(model / "config.json"));
  };
  const fs::path narrow = directory.path() / "narrow";
  convert(input, narrow, plan_of(0.6, "tca_bme", "i4:32"));
  EXPECT_EQ(config(narrow)["quantization_config"]["values"], nlohmann::json({"i4:32"}));
  const fs::path wide = directory.path() / "wide";
  convert(narrow, wide, plan_of(0, "tca_bme", {}));
  EXPECT_FALSE(config(wide)["quantization_config"].contains("values"));
  testing::expect_same_weights(Model(narrow), Model(wide));

  nlohmann::json other = config(narrow);
  other["quantization_config"]["values"] = {"i2"};
  std::ofstream(narrow / "config.json") << other;
  EXPECT_TRUE(throws_error([&] { read_model_config(narrow); }, "quantization_config.values[0]"));
}

TEST(ConvertValuesErrors, AreOfATensor) {
  const TempDir directory;
  const fs::path input = directory.path() / "in";
  testing::write_synthetic_model(input, {.hidden = 64, .intermediate = 128, .blocks = 1});
  // The last bytes of the file are the last tensor's.
  {
    std::fstream file(input / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    const Model model(input);
    const StoredTensor& up = *model.checkpoint.find("model.layers.0.mlp.up_proj.weight");
    file.seekp(up.bytes.data() - model.checkpoint.file_of(up.bytes).bytes().data());
    file.write("\x00\x7e", 2);  // NaN
  }
  for (const std::string format : {"tca_bme", "smallest", "dense_i8"}) {
    EXPECT_TRUE(
        throws_error([&] { convert(input, directory.path() / "out", plan_of(0, format, "i8")); },
                     "mlp.up_proj.weight"));
    EXPECT_FALSE(fs::exists(directory.path() / "out"));
  }
  for (const char* format : {"dense", "tiled_csl"}) {
    EXPECT_TRUE(throws_error([&] { plan_of(0, format, "i8"); }, "cannot be chosen"));
  }
  EXPECT_TRUE(throws_error([&] { plan_of(0, "dense_i8", "i4"); },
                           "the weight format dense_i8 holds values of i8, not of"));
  EXPECT_TRUE(throws_error([&] { plan_of(0, "dense_i4", "size"); },
                           "the weight format dense_i4 holds values of i4, not of"));
}

// What is compared is what was stored.
TEST(RequireDecodes, FindsEveryCodeAndScale) {
  ThreadPool threads(2);
  const GuardedTensor w(DType::f16, {300, 200});
  std::vector<double> values;
  values.reserve(300 * 200);
  for (int i = 0; i < 300 * 200; ++i) {
    values.push_back(i % 3 == 0 ? 0.0 : ((i * 37) % 101 - 50) / 64.0);
  }
  set_values(w.view(), values);
  for (const NarrowFormat& in : narrow_formats()) {
    const auto encoding = [&] {
      return encode_planned(w.view(), {.prune = {}, .format = in.format, .layout = in.chosen},
                            {.rules = FormatRules::built_in(), .joined = {}}, threads);
    };
    PlannedEncoding right = encoding();
    ASSERT_TRUE(right.encoded && right.rounded);
    EXPECT_NO_THROW(require_decodes(right, w.view(), "w", threads));
    const auto expect_found = [&](const std::function<void(QuantizedMatrix&)>& change) {
      PlannedEncoding wrong = encoding();
      change(*wrong.rounded);
      EXPECT_TRUE(throws_error([&] { require_decodes(wrong, w.view(), "w", threads); },
                               "does not decode to the same values"));
    };
    expect_found([](QuantizedMatrix& q) { q.codes.back() ^= 1; });
    expect_found([](QuantizedMatrix& q) { q.codes[1] = static_cast<int8_t>(q.codes[1] ^ 3); });
    expect_found([](QuantizedMatrix& q) { q.scales.back() *= 2.0f; });
    // As it was encoded without rounding.
    right.rounded.reset();
    EXPECT_TRUE(throws_error([&] { require_decodes(right, w.view(), "w", threads); },
                             "does not decode to the same values"));
  }
}

}  // namespace
}  // namespace sparsellm
