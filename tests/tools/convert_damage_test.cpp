// Converted models whose files are damaged.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/converted_model.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::load;
using testing::plan;
using testing::TempDir;

fs::path llama3() { return testing::data("tiny/llama3"); }  // bf16, two shards

class ConvertDamage : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, ConvertDamage, ::testing::Values("dense", "tiled_csl", "tca_bme"),
                         [](const auto& use) { return std::string(use.param); });

EngineOptions small_engine(bool verify) {
  EngineOptions options;
  options.context_size = 32;
  options.max_requests = 1;
  options.step_tokens = 32;
  options.threads = 1;
  options.verify = verify;
  options.with_tokenizer = false;
  return options;
}

// Loads it, and runs it if it loads; anything but an Error ends the test.
void try_to_run(const fs::path& model) {
  try {
    Engine engine = Engine::load(model, small_engine(false));
    Request request;
    request.prompt = {3, 7, 5};
    request.max_tokens = 3;
    engine.generate({request});
  } catch (const Error& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
  }
}

TEST_P(ConvertDamage, IsFoundByVerifyAndNeverCrashes) {
  const TempDir directory;
  const fs::path model = directory.path() / "model";
  convert(llama3(), model, plan("magnitude", 0.5, GetParam()));
  const std::string good = contents(model / "model.safetensors");
  EXPECT_EQ(Engine::load(model, small_engine(true)).context_size(), 32);
  uint64_t header = 0;
  std::memcpy(&header, good.data(), sizeof(header));

  testing::Random random(77);
  const auto expect_refused = [&](const std::string& bytes) {
    directory.write("model/model.safetensors", bytes);
    EXPECT_THROW(Engine::load(model, small_engine(true)), Error);
    try_to_run(model);
  };
  const int flips = testing::kSanitized ? 20 : 100;
  for (int i = 0; i < flips; ++i) {
    // Half of them in the header, which is a small part of the file.
    const auto end = i % 2 == 0 ? good.size() : static_cast<size_t>(8 + header);
    const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(end)));
    const auto bit = random.below(8);
    SCOPED_TRACE(fmt::format("bit {} of byte {}", bit, at));
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    expect_refused(bytes);
  }
  for (int i = 0; i < flips / 5; ++i) {
    const auto size = static_cast<size_t>(random.below(static_cast<int64_t>(good.size())));
    SCOPED_TRACE(fmt::format("{} of {} bytes", size, good.size()));
    expect_refused(good.substr(0, size));
  }
  expect_refused(good + "x");
  expect_refused("");
  directory.write("model/model.safetensors", good);
  EXPECT_EQ(Engine::load(model, small_engine(true)).context_size(), 32);
}

}  // namespace
}  // namespace sparsellm
