// What the converter writes, tensor by tensor, and what the engine makes of it.

#include "engine/conversion/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/storage/model_writer.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/eval/compare.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::entries;
using testing::expect_same_bytes;
using testing::expect_same_f16_bytes;
using testing::expect_same_files;
using testing::expect_same_others;
using testing::expect_same_weights;
using testing::greedy;
using testing::kContext;
using testing::load;
using testing::Model;
using testing::plan;
using testing::TempDir;
using testing::throws_error;
using testing::verified;

fs::path llama() { return testing::data("models/fable-llama-relu-8m"); }
fs::path opt() { return testing::data("models/fable-opt-8m"); }
fs::path llama3() { return testing::data("tiny/llama3"); }  // bf16, two shards
fs::path f32_model() { return testing::data("tiny/llama_bias"); }

constexpr std::array kFormats{"dense", "tiled_csl", "tca_bme", "auto"};

std::string text_of_size(size_t bytes) {
  return contents(testing::data("text/peter_pan.txt")).substr(0, bytes);
}

void expect_same_distribution(Engine& a, Engine& b, size_t text_bytes) {
  const Comparison result =
      compare_models({.name = "input", .engine = a}, {.name = "output", .engine = b},
                     text_of_size(text_bytes), {.context = kContext});
  EXPECT_GT(result.tokens, 100);
  EXPECT_LT(result.kl.value, 1e-6);
  EXPECT_LT(result.kl_max, 1e-6);
  EXPECT_NEAR(result.perplexity_ratio.value, 1.0, 1e-4);
}

bool has_tokenizer(const fs::path& directory) {
  return fs::exists(directory / "tokenizer_config.json");
}

bool is_f32(const fs::path& directory) {
  const Model model(directory);
  return model.stored(model.layers.front()).dtype == DType::f32;
}

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

class Convert : public ::testing::TestWithParam<fs::path> {
 protected:
  fs::path out(const std::string& name) const { return directory_.path() / name; }
  const fs::path& input() const { return GetParam(); }

 private:
  TempDir directory_;
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Convert, ::testing::ValuesIn(testing::all_checkpoints()),
                         test_name);

TEST_P(Convert, WithoutPruningTheModelIsTheSame) {
  const bool f32 = is_f32(input());
  Engine original = load(input(), {}, has_tokenizer(input()));
  const std::vector<int32_t> expected = greedy(original);
  const Model before(input());
  for (const std::string format : kFormats) {
    SCOPED_TRACE(format);
    if (f32 && format == "tca_bme") {
      EXPECT_TRUE(throws_error([&] { convert(input(), out(format), plan("none", 0, format)); },
                               "cannot be stored as tca_bme"));
      EXPECT_FALSE(fs::exists(out(format)));
      continue;
    }
    if (f32 && format == "tiled_csl") {
      continue;  // below
    }
    const Conversion conversion = convert(input(), out(format), plan("none", 0, format), verified);
    const Model after(out(format));
    expect_same_weights(before, after);
    expect_same_others(before, after);
    expect_same_files(input(), out(format));
    ASSERT_EQ(conversion.weights.size(), before.layers.size());
    EXPECT_EQ(testing::formats_of_config(out(format)), conversion.sparse_formats());
    int64_t bytes = 0;
    for (size_t i = 0; i < before.layers.size(); ++i) {
      const ConvertedWeight& weight = conversion.weights[i];
      const WeightStore::Stored stored = after.stored(before.layers[i]);
      EXPECT_EQ(weight.format, stored.format);
      EXPECT_EQ(weight.bytes, stored.bytes);
      EXPECT_EQ(weight.nonzeros, weight.stored_nonzeros);
      EXPECT_EQ(weight.method, "none");
      EXPECT_TRUE(format == "auto" || stored.format == format);
      EXPECT_TRUE(format != "auto" || weight.bytes <= weight.dense_bytes);
      bytes += stored.bytes;
    }
    EXPECT_EQ(bytes, conversion.bytes());
    if (testing::kSanitized && has_tokenizer(input()) && format != "tca_bme") {
      continue;  // sanitizers make the products of the larger models slow
    }

    Engine converted = load(out(format), {}, has_tokenizer(input()));
    EXPECT_EQ(greedy(converted), expected);
    if (has_tokenizer(input())) {
      const bool is_sparse = after.stored(after.layers.front()).format != "dense";
      expect_same_distribution(original, converted, is_sparse && !testing::kSanitized ? 2000 : 600);
    }
  }
}

TEST_P(Convert, ConvertsOnToEveryOtherFormatAndBack) {
  const Model before(input());
  const bool f32 = is_f32(input());
  const std::vector<std::string> formats =
      f32 ? std::vector<std::string>{"dense", "auto"}
          : std::vector<std::string>{"dense", "tiled_csl", "tca_bme", "auto"};
  const bool is_large = before.config.num_layers > 2;
  if (is_large && testing::kSanitized) {
    GTEST_SKIP() << "the small models are enough";
  }
  for (const std::string& format : formats) {
    convert(input(), out(format), plan("none", 0, format));
  }
  for (const std::string& from : formats) {
    for (const std::string& to : formats) {
      if (is_large && (from == "auto" || to == "auto")) {
        continue;
      }
      SCOPED_TRACE(fmt::format("from {} to {}", from, to));
      const std::string name = from + "-" + to;
      convert(out(from), out(name), plan("none", 0, to), verified);
      const Model after(out(name));
      expect_same_weights(before, after);
      expect_same_others(before, after);
      expect_same_files(out(from), out(name));
      EXPECT_EQ(testing::formats_of_config(out(name)), testing::formats_of_config(out(to)));
      if (to == from || (to == "tca_bme" && from == "tiled_csl")) {
        expect_same_bytes(out(to), out(name));
      }
      if (to == "dense" && from == "dense") {
        expect_same_bytes(input(), out(name));
      } else if (to == "dense" && !f32) {
        expect_same_f16_bytes(input(), out(name));
      }
      fs::remove_all(out(name));
    }
  }
}

// Version 1 of tca_bme, which older conversions have: it loads, and is replaced by version 2.
TEST_P(Convert, EncodesAnOlderVersionAnew) {
  if (is_f32(input())) {
    GTEST_SKIP() << "tca_bme does not hold f32";
  }
  const Model before(input());
  if (before.config.num_layers > 2 && testing::kSanitized) {
    GTEST_SKIP() << "the small models are enough";
  }
  convert(input(), out("new"), plan("none", 0, "tca_bme"));
  ModelWriter writer(out("old"), {});
  ThreadPool threads(2);
  for (const LinearLayer& layer : before.layers) {
    writer.add(before.stored(layer).name, tca_bme::encode_paper(before.dense(layer).view, threads));
  }
  for (const std::string& name : before.other_tensors()) {
    writer.add(name, *before.checkpoint.find(name));
  }
  writer.copy_file(input() / "config.json");
  writer.finish();
  Engine original = load(input(), {}, false);
  Engine old = load(out("old"), {}, false);
  EXPECT_EQ(greedy(old), greedy(original));

  convert(out("old"), out("again"), plan("none", 0, "tca_bme"), verified);
  expect_same_bytes(out("new"), out("again"));
  const auto planned_bytes = [&](const std::string& name) {
    return inspect_model({.input = out(name), .output = {}, .plan = plan("none", 0, "tca_bme")})
        .front()
        .conversion.bytes();
  };
  EXPECT_EQ(planned_bytes("old"), planned_bytes("new"));
}

TEST_P(Convert, LoadsInAnotherFormatThanItIsStoredIn) {
  if (is_f32(input())) {
    GTEST_SKIP() << "there is one format for f32";
  }
  Engine original = load(input(), {}, false);
  const std::vector<int32_t> expected = greedy(original);
  for (const auto& [stored, loaded] : {std::pair("tiled_csl", "tca_bme"),
                                       {"tiled_csl", "dense"},
                                       {"tca_bme", "tiled_csl"},
                                       {"tca_bme", "dense"},
                                       {"dense", "tca_bme"}}) {
    SCOPED_TRACE(fmt::format("{} as {}", stored, loaded));
    if (!fs::exists(out(stored))) {
      convert(input(), out(stored), plan("none", 0, stored));
    }
    Engine converted = load(out(stored), loaded, false);
    EXPECT_EQ(greedy(converted), expected);
  }
}

TEST(ConvertF32, SparseFormatsAreRefusedByName) {
  const TempDir directory;
  const Model model(f32_model());
  ThreadPool threads(1);
  for (const WeightFormat* format : weight_formats()) {
    const OwnedTensor w = model.dense(model.layers.front());
    const std::string why = format->why_not(w.view);
    const fs::path output = directory.path() / format->name();
    const auto run = [&] {
      convert(f32_model(), output, plan("none", 0, std::string(format->name())));
    };
    if (why.empty()) {
      run();
      expect_same_weights(model, Model(output));
    } else {
      EXPECT_TRUE(throws_error(run, why));
      EXPECT_TRUE(throws_error(run, "model.layers.0.self_attn.q_proj.weight"));
      EXPECT_FALSE(fs::exists(output));
    }
  }
}

// ---- Shards.

TEST(ConvertShards, SmallFilesAndAnIndex) {
  const TempDir directory;
  const auto to_shards = [&](const std::string& name, const std::string& format) {
    convert(llama(), directory.path() / name, plan("magnitude", 0.6, format),
            [](ConvertOptions& options) {
              options.max_shard_bytes = 2'500'000;
              options.verify = true;
            });
    return directory.path() / name;
  };
  for (const std::string format : {"tca_bme", "dense"}) {
    SCOPED_TRACE(format);
    const fs::path one = directory.path() / (format + "-one");
    convert(llama(), one, plan("magnitude", 0.6, format));
    const fs::path output = to_shards(format, format);
    const Checkpoint checkpoint(output);
    EXPECT_GE(checkpoint.files().size(), 4u);
    for (const SafetensorsFile& file : checkpoint.files()) {
      int64_t bytes = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        bytes += std::ssize(tensor.bytes);
      }
      EXPECT_LE(bytes, 2'500'000);
    }
    const auto index = nlohmann::json::parse(contents(output / "model.safetensors.index.json"));
    EXPECT_EQ(index.at("weight_map").size(), checkpoint.names().size());
    const Model a(one);
    const Model b(output);
    expect_same_weights(a, b);
    expect_same_others(a, b);
    Engine x = load(one, {}, false);
    Engine y = load(output, {}, false);
    EXPECT_EQ(greedy(x), greedy(y));
    // Back into one file.
    convert(output, directory.path() / (format + "-back"), plan("none", 0, format));
    expect_same_bytes(one, directory.path() / (format + "-back"));
  }
}

// ---- Dry runs.

TEST(Inspect, FiguresAreThoseOfAConversion) {
  for (const auto& [method, sparsity] :
       {std::pair("none", 0.0), {"magnitude", 0.3}, {"magnitude", 0.6}, {"magnitude", 0.97}}) {
    for (const fs::path& input : {opt(), llama3(), f32_model()}) {
      if (input == opt() && sparsity != 0.6) {
        continue;  // it is large
      }
      const TempDir directory;
      ConvertOptions options{
          .input = input, .output = {}, .plan = plan(method, sparsity, "auto"), .threads = 2};
      const std::vector<Inspection> inspections = inspect_model(options);
      EXPECT_EQ(entries(directory.path()), std::set<std::string>{});
      ASSERT_EQ(inspections.size(), exact_formats().size() + 3);
      EXPECT_EQ(inspections[0].format, "planned");
      EXPECT_EQ(inspections[1].format, "auto");
      EXPECT_EQ(inspections[2].format, "smallest");
      for (const Inspection& inspection : inspections) {
        SCOPED_TRACE(fmt::format("{} {} as {}, {}", method, sparsity, inspection.format,
                                 input.filename().string()));
        options.output = directory.path() / inspection.format;
        const bool planned = inspection.format == "planned";
        options.plan = plan(method, sparsity, planned ? "auto" : inspection.format);
        Conversion real;
        try {
          real = convert_model(options);
        } catch (const Error&) {
          EXPECT_EQ(input, f32_model());  // where a dry run counts what stays dense
          EXPECT_EQ(inspection.conversion.bytes(), inspection.conversion.dense_bytes());
          continue;
        }
        EXPECT_EQ(real.other_bytes, inspection.conversion.other_bytes);
        EXPECT_EQ(real.bytes(), inspection.conversion.bytes());
        EXPECT_EQ(real.dense_bytes(), inspection.conversion.dense_bytes());
        ASSERT_EQ(real.weights.size(), inspection.conversion.weights.size());
        for (size_t i = 0; i < real.weights.size(); ++i) {
          const ConvertedWeight& a = real.weights[i];
          const ConvertedWeight& b = inspection.conversion.weights[i];
          EXPECT_EQ(a.layer.module, b.layer.module);
          EXPECT_EQ(a.method, b.method);
          EXPECT_EQ(a.format, b.format);
          EXPECT_EQ(a.stored_nonzeros, b.stored_nonzeros);
          EXPECT_EQ(a.nonzeros, b.nonzeros);
          EXPECT_EQ(a.formula_bytes, b.formula_bytes);
          EXPECT_EQ(a.bytes, b.bytes);
        }
      }
    }
  }
}

// ---- What else could go wrong.

TEST(ConvertErrors, AWrongShapeNamesTheTensor) {
  const TempDir input;
  for (const std::string& name : entries(opt())) {
    fs::copy_file(opt() / name, input.path() / name);
  }
  auto config = nlohmann::json::parse(contents(opt() / "config.json"));
  config["ffn_dim"] = 512;
  input.write("config.json", config.dump());
  const TempDir output;
  EXPECT_TRUE(
      throws_error([&] { convert(input.path(), output.path() / "out", plan("none", 0, "auto")); },
                   R"(fc1.weight" has shape [1024, 256], but the config asks for [512, 256])"));
  EXPECT_EQ(entries(output.path()), std::set<std::string>{});
}

// A weight of a block that the config does not count is in no list.
TEST(ConvertErrors, EncodedWeightsThatNoLayerAsksFor) {
  const TempDir directory;
  convert(opt(), directory.path() / "in", plan("none", 0, "tca_bme"));
  auto config = nlohmann::json::parse(contents(opt() / "config.json"));
  config["num_hidden_layers"] = 7;
  directory.write("in/config.json", config.dump());
  EXPECT_TRUE(throws_error(
      [&] { convert(directory.path() / "in", directory.path() / "out", plan("none", 0, "auto")); },
      "layers.7."));
  EXPECT_FALSE(fs::exists(directory.path() / "out"));
}

TEST(ConvertErrors, AnOutputInsideTheInput) {
  const TempDir directory;
  const fs::path input = directory.path() / "in";
  fs::copy(llama3(), input);
  const std::set<std::string> before = entries(input);
  fs::create_directory_symlink(input, directory.path() / "link");
  for (const fs::path& output : {input / "out", input / "out" / "", input / ".." / "in" / "out",
                                 directory.path() / "link/x", input / "config.json"}) {
    EXPECT_TRUE(throws_error([&] { convert(input, output, plan("none", 0, "auto")); },
                             "is inside the input"))
        << output;
  }
  EXPECT_TRUE(throws_error([&] { convert(input, input, plan("none", 0, "auto")); },
                           "would replace the input"));
  EXPECT_EQ(entries(input), before);
}

TEST(ConvertErrors, ProgressMayThrow) {
  const TempDir directory;
  for (const int64_t share : {0, 1, 2, 3}) {
    EXPECT_TRUE(throws_error(
        [&] {
          convert(opt(), directory.path() / "out", plan("none", 0, "auto"),
                  [&](ConvertOptions& options) {
                    options.progress = [&](int64_t done, int64_t total, std::string_view) {
                      require(4 * done < share * total + 1, "enough");
                    };
                  });
        },
        "enough"));
    EXPECT_EQ(entries(directory.path()), std::set<std::string>{});
  }
}

TEST(ConvertErrors, PollMayThrowAnything) {
  struct Stopped {};
  const TempDir directory;
  int calls = 0;
  convert(llama3(), directory.path() / "all", plan("none", 0, "auto"),
          [&](ConvertOptions& options) { options.poll = [&] { ++calls; }; });
  EXPECT_GT(calls, 10);
  fs::remove_all(directory.path() / "all");
  for (const int last : {1, calls / 2, calls}) {
    int left = last;
    EXPECT_THROW(convert(llama3(), directory.path() / "out", plan("none", 0, "auto"),
                         [&](ConvertOptions& options) {
                           options.poll = [&] {
                             if (--left == 0) {
                               throw Stopped{};
                             }
                           };
                         }),
                 Stopped);
    EXPECT_EQ(entries(directory.path()), std::set<std::string>{});
  }
}

TEST(ConvertModelCard, IsWhatTheCallbackReturns) {
  const TempDir directory;
  const fs::path output = directory.path() / "out";
  convert(llama3(), output, plan("magnitude", 0.5, "tca_bme"), [&](ConvertOptions& options) {
    options.model_card = [&](const Conversion& conversion) {
      EXPECT_FALSE(fs::exists(output));
      return fmt::format("{} layers\n", conversion.weights.size());
    };
  });
  EXPECT_EQ(contents(output / "README.md"),
            fmt::format("{} layers\n", Model(llama3()).layers.size()));
}

TEST(ConvertProgress, EndsWithEverything) {
  const TempDir directory;
  int64_t last = 0;
  int64_t all = -1;
  convert(llama3(), directory.path() / "out", plan("magnitude", 0.5, "auto"),
          [&](ConvertOptions& options) {
            options.progress = [&](int64_t done, int64_t total, std::string_view tensor) {
              EXPECT_GE(done, last);
              EXPECT_LE(done, total);
              EXPECT_NE(tensor, "");
              last = done;
              all = total;
            };
          });
  EXPECT_EQ(last, all);
}

}  // namespace
}  // namespace sparsellm
