// Converted models whose files are damaged.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "models/storage/model_metadata.h"
#include "models/storage/model_writer.h"
#include "models/storage/safetensors.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::plan;
using testing::TempDir;
using testing::throws_error;

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

// A conversion of damaged tensors would give them new, right checksums.
TEST_P(ConvertDamage, IsNotConverted) {
  const TempDir directory;
  const fs::path model = directory.path() / "model";
  convert(llama3(), model, plan("magnitude", 0.5, GetParam()));
  const std::string good = contents(model / "model.safetensors");
  struct Place {
    std::string tensor;
    int64_t offset = 0;
  };
  std::vector<Place> places;
  testing::Random random(78);
  {
    const Checkpoint checkpoint(model);
    const std::span<const std::byte> file = checkpoint.files().front().file().bytes();
    for (const std::string& name : checkpoint.names()) {
      const StoredTensor& tensor = *checkpoint.find(name);
      if (!tensor.bytes.empty() && !name.starts_with(kPaddingPrefix)) {
        places.push_back(
            {name, tensor.bytes.data() - file.data() + random.below(std::ssize(tensor.bytes))});
      }
    }
  }
  const std::vector<SparsityPlan> plans{plan("none", 0, "auto"), plan("none", 0, "dense"),
                                        plan("magnitude", 0.7, "tca_bme")};
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [tensor, offset] = places[i];
    std::string bytes = good;
    bytes[static_cast<size_t>(offset)] ^= 0x10;
    directory.write("model/model.safetensors", bytes);
    const fs::path output = directory.path() / "output";
    EXPECT_TRUE(throws_error(
        [&] {
          convert(model, output, plans[i % plans.size()], [&](ConvertOptions& options) {
            options.verify = i % 2 == 0;
            if (i % 5 == 0) {
              options.dtype = DType::f16;
            }
          });
        },
        "is damaged: the tensor \"" + tensor + "\" does not have the checksum"));
    EXPECT_FALSE(fs::exists(output));
  }
  // A checksum.
  std::string bytes = good;
  const std::string_view key = "\"crc32c:lm_head.weight\":\"";
  char& digit = bytes[bytes.find(key) + key.size()];
  digit = digit == '0' ? '1' : '0';
  directory.write("model/model.safetensors", bytes);
  EXPECT_TRUE(
      throws_error([&] { convert(model, directory.path() / "output", plan("none", 0, "dense")); },
                   "is damaged: its header"));
}

TEST(ConvertInput, WhatIsMissingIsSaid) {
  const TempDir directory;
  const fs::path input = directory.path() / "input";
  const fs::path output = directory.path() / "output";
  const auto copy = [&] {
    fs::remove_all(input);
    fs::copy(llama3(), input);
    fs::permissions(input, fs::perms::owner_all);
  };
  const auto refused = [&](const std::string& part) {
    EXPECT_TRUE(throws_error([&] { convert(input, output, plan("none", 0, "auto")); }, part));
    EXPECT_FALSE(fs::exists(output));
  };
  // A link of a cache that has lost the file.
  copy();
  fs::remove(input / "tokenizer.json");
  fs::create_symlink("../blobs/1", input / "tokenizer.json");
  refused("cannot open " + (input / "tokenizer.json").string());
  fs::remove(input / "tokenizer.json");
  fs::create_symlink("../blobs/1", input / "LICENSE");
  refused("cannot open " + (input / "LICENSE").string());
  fs::remove(input / "LICENSE");
  // A model without a tokenizer is converted, and the caller can tell.
  EXPECT_FALSE(convert(input, output, plan("none", 0, "auto")).has_tokenizer);
  fs::remove_all(output);
}

// Whoever converts a model learns at once that its tokenizer cannot be read, not hours later.
TEST(ConvertInput, ATokenizerThatCannotBeReadIsRefused) {
  const TempDir directory;
  const fs::path input = directory.path() / "input";
  const fs::path output = directory.path() / "output";
  fs::copy(llama3(), input);
  fs::permissions(input / "tokenizer.json", fs::perms::owner_all);
  directory.write("input/tokenizer.json", R"({"version": "1.0", "model": {"type": "Unigram"}})");
  ConvertOptions options{.input = input, .output = output, .plan = plan("none", 0, "auto")};
  for (const auto& run : {std::function<void()>([&] { convert_model(options); }),
                          std::function<void()>([&] { inspect_model(options); })}) {
    EXPECT_TRUE(throws_error(run, R"(tokenizer.json: model.type is "Unigram")"));
    EXPECT_TRUE(throws_error(run, "--no-tokenizer converts the model without its tokenizer"));
    EXPECT_FALSE(fs::exists(output));
  }
  options.with_tokenizer = false;
  EXPECT_FALSE(convert_model(options).has_tokenizer);
  EXPECT_FALSE(fs::exists(output / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(output / "tokenizer_config.json"));
  EXPECT_TRUE(fs::exists(output / "generation_config.json"));
}

// Norms, embeddings and the head: the converter copies them, and so they have to be those of the
// config.
TEST(ConvertInput, AllTensorsOfTheConfigAreThere) {
  const TempDir directory;
  const fs::path input = directory.path() / "input";
  const fs::path output = directory.path() / "output";
  std::vector<std::string> names;
  {
    const Checkpoint all(llama3());
    for (const std::string& name : all.names()) {
      if (name.find("_proj") == std::string::npos) {
        names.push_back(name);
      }
    }
  }
  ASSERT_GT(names.size(), 3u);
  for (const std::string& missing : names) {
    for (const bool misshapen : {false, true}) {
      fs::remove_all(input);
      const Checkpoint all(llama3());
      ModelWriter writer(input, {});
      writer.copy_file(llama3() / "config.json");
      for (const std::string& name : all.names()) {
        StoredTensor tensor = *all.find(name);
        if (name == missing && misshapen) {
          tensor.shape.push_back(1);
        }
        if (name != missing || misshapen) {
          writer.add(name, tensor);
        }
      }
      writer.finish();
      EXPECT_TRUE(throws_error(
          [&] { convert(input, output, plan("none", 0, "auto")); },
          "the tensor \"" + missing + "\" " + (misshapen ? "has shape" : "is missing")));
    }
  }
}

}  // namespace
}  // namespace sparsellm
