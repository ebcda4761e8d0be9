// What the config.json of a converted model says of its weights.

#include "engine/conversion/output_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/storage/model_manifest.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::contents;
using testing::convert;
using testing::formats_of_config;
using testing::plan;
using testing::TempDir;
using testing::throws_error;

fs::path llama3() { return testing::data("tiny/llama3"); }

json config_of(const fs::path& directory) {
  return json::parse(contents(directory / "config.json"));
}

TEST(ConvertedConfig, NamesTheFormatsUntilTheModelIsDenseAgain) {
  const TempDir directory;
  const fs::path sparse = directory.path() / "sparse";
  const fs::path dense = directory.path() / "dense";
  convert(llama3(), sparse, plan("magnitude", 0.7, "tca_bme"));
  EXPECT_EQ(formats_of_config(sparse), std::set<std::string>{"tca_bme"});
  json config = config_of(sparse);
  EXPECT_FALSE(config["quantization_config"].contains("quant_method"));
  config.erase("quantization_config");
  EXPECT_EQ(config, config_of(llama3()));

  convert(sparse, dense, plan("none", 0, "dense"));
  EXPECT_EQ(config_of(dense), config_of(llama3()));
  // A model that is dense all the time keeps the very text.
  convert(llama3(), directory.path() / "plain", plan("none", 0, "dense"));
  EXPECT_EQ(contents(directory.path() / "plain" / "config.json"),
            contents(llama3() / "config.json"));
}

TEST(ConvertedConfig, OlderDirectoriesLoadWithoutIt) {
  const TempDir directory;
  const fs::path sparse = directory.path() / "sparse";
  convert(llama3(), sparse, plan("magnitude", 0.7, "tca_bme"));
  Engine engine = testing::load(sparse, {}, false);
  const std::vector<int32_t> expected = testing::greedy(engine);
  std::ofstream(sparse / "config.json") << contents(llama3() / "config.json");
  fs::remove(sparse / kManifestName);
  Engine older = testing::load(sparse, {}, false);
  EXPECT_EQ(testing::greedy(older), expected);
  const fs::path again = directory.path() / "again";
  convert(sparse, again, plan("none", 0, "tca_bme"));
  EXPECT_EQ(formats_of_config(again), std::set<std::string>{"tca_bme"});
}

TEST(ConvertedConfig, NewerAndForeignOnesAreRefused) {
  const TempDir directory;
  const fs::path sparse = directory.path() / "sparse";
  convert(llama3(), sparse, plan("magnitude", 0.7, "tca_bme"));
  json config = config_of(sparse);
  config["quantization_config"]["version"] = 2;
  std::ofstream(sparse / "config.json") << config;
  EXPECT_TRUE(
      throws_error([&] { testing::load(sparse, {}, false); }, "quantization_config.version is 2"));
  config["quantization_config"]["quant_method"] = "gptq";
  std::ofstream(sparse / "config.json") << config;
  EXPECT_TRUE(throws_error([&] { testing::load(sparse, {}, false); }, "quantization_config"));
}

TEST(ConvertedConfig, IsNotTrueOfADenseModelThatHasIt) {
  const TempDir directory;
  const fs::path input = directory.path() / "input";
  fs::copy(llama3(), input);
  json config = config_of(llama3());
  config["quantization_config"] = {
      {"library", "sparsellm"}, {"version", 1}, {"formats", {"tca_bme"}}};
  std::ofstream(input / "config.json") << config;
  convert(input, directory.path() / "dense", plan("none", 0, "dense"));
  EXPECT_EQ(config_of(directory.path() / "dense"), config_of(llama3()));
}

}  // namespace
}  // namespace sparsellm
