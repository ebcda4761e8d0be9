#include "models/storage/model_directory.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/models/expect_error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using testing::error_of;
using testing::expect_message;
using testing::TempDir;

std::string refusal(const std::filesystem::path& path) {
  return error_of([&] { open_model_directory(path); });
}

TEST(ModelDirectory, TakesOnesWithAConfig) {
  EXPECT_NO_THROW(open_model_directory(testing::data("models/fable-opt-8m")));
  EXPECT_NO_THROW(open_model_directory(testing::data("models/fable-opt-8m/")));
}

TEST(ModelDirectory, NamesOfTheHub) {
  for (const char* name : {"meta-llama/Llama-2-7b-hf", "facebook/opt-125m", "a_b/c.d-1"}) {
    expect_message(refusal(name), std::string("'hf download ") + name + " --local-dir DIR'");
  }
  const TempDir directory;
  for (const std::string name :
       {"no-such-model", "/no/such", "../x", "./x/y", "a/b/c", "a/", "a b/c"}) {
    const std::string message = refusal(name);
    expect_message(message, "does not exist");
    EXPECT_EQ(message.find("hf download"), std::string::npos) << message;
  }
  expect_message(refusal(directory.path() / "x.gguf"), "GGUF is not read");
}

TEST(ModelDirectory, FilesOfACheckpoint) {
  const TempDir directory;
  expect_message(refusal(directory.write("a.gguf", "")), "GGUF is not read");
  expect_message(refusal(directory.write("model.safetensors", "")),
                 "is a file; expected a model directory, with config.json");
  const auto config = directory.write("config.json", "{}");
  for (const auto& file : {config, directory.path() / "model.safetensors"}) {
    expect_message(refusal(file),
                   "give " + directory.path().string() + ", which has its config.json");
  }
  expect_message(refusal(config / "x"), "does not exist");
}

TEST(ModelDirectory, DirectoriesWithoutAConfig) {
  const TempDir directory;
  expect_message(refusal(directory.path()), "has no config.json; a model directory has that");
  directory.write("a.gguf", "");
  expect_message(refusal(directory.path()), "has no config.json but a.gguf; GGUF is not read");
  directory.write("snapshots/0/README.md", "");
  expect_message(refusal(directory.path()), "GGUF is not read");
  directory.write("snapshots/1/config.json", "");
  expect_message(refusal(directory.path()), "snapshots/1 has: give that");
}

}  // namespace
}  // namespace sparsellm
