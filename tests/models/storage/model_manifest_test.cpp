#include "models/storage/model_manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "models/storage/model_file.h"
#include "models/storage/model_writer.h"
#include "tests/models/expect_error.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::TempDir;
using testing::throws_error;
using Existing = OutputDirectory::Existing;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Three tensors of `value`, each in a file of its own.
void write_model(const fs::path& output, char value, Existing existing = Existing::refuse) {
  ModelWriter writer(output, {.existing = existing, .max_shard_bytes = 16});
  writer.write_text("config.json", std::string("{\"a\": \"") + value + "\"}");
  writer.write_text("tokenizer.json", "{}");
  writer.write_text("README.md", output.filename().string());
  const std::string bytes(16, value);
  for (const char* name : {"a", "b", "c"}) {
    writer.add(name, StoredTensor{.dtype = "U8",
                                  .shape = {std::ssize(bytes)},
                                  .bytes = std::as_bytes(std::span(bytes))});
  }
  writer.finish();
}

std::string verify(const fs::path& model) {
  const Checkpoint checkpoint(model);
  return ModelFile(checkpoint).verify({});
}

void load(const fs::path& model) {
  const Checkpoint checkpoint(model);
  const ModelFile file(checkpoint);
}

std::string shard(int number) { return fmt::format("model-{:05}-of-00003.safetensors", number); }

TEST(ModelManifest, NamesAllFiles) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  write_model(model, 'x');
  const std::optional<ModelManifest> manifest = read_manifest(model);
  ASSERT_TRUE(manifest.has_value());
  std::set<std::string> names{std::string(kManifestName)};
  for (const auto& [name, file] : manifest->files) {
    names.insert(name);
    EXPECT_EQ(file.bytes, static_cast<int64_t>(fs::file_size(model / name))) << name;
  }
  std::set<std::string> there;
  for (const auto& entry : fs::directory_iterator(model)) {
    there.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, there);
  const Checkpoint checkpoint(model);
  for (const SafetensorsFile& file : checkpoint.files()) {
    EXPECT_EQ(file.metadata().at(std::string(kConversionKey)), manifest->id);
  }
  EXPECT_EQ(verify(model), "");
  EXPECT_FALSE(read_manifest(dir.path()).has_value());
}

TEST(ModelManifest, TheIdIsThatOfTheContents) {
  const TempDir dir;
  write_model(dir.path() / "one", 'x');
  write_model(dir.path() / "two", 'x');
  write_model(dir.path() / "other", 'y');
  const std::string id = read_manifest(dir.path() / "one")->id;
  EXPECT_EQ(read_manifest(dir.path() / "two")->id, id);
  EXPECT_NE(read_manifest(dir.path() / "other")->id, id);
  for (int number = 1; number <= 3; ++number) {
    EXPECT_EQ(contents(dir.path() / "one" / shard(number)),
              contents(dir.path() / "two" / shard(number)));
  }
}

TEST(ModelManifest, FilesOfTwoConversionsAreNoModel) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  const fs::path other = dir.path() / "other";
  write_model(other, 'y');
  const auto with = [&](std::initializer_list<std::string> names) {
    fs::remove_all(model);
    write_model(model, 'x');
    for (const std::string& name : names) {
      fs::copy_file(other / name, model / name, fs::copy_options::overwrite_existing);
    }
  };
  for (int number = 1; number <= 3; ++number) {
    with({shard(number)});
    EXPECT_TRUE(throws_error([&] { load(model); }, "two conversions"));
  }
  with({shard(1), shard(2), shard(3)});
  EXPECT_TRUE(throws_error([&] { load(model); }, "is of another conversion than the weights"));
  EXPECT_TRUE(throws_error([&] { load(model); }, std::string(kManifestName)));
  fs::remove(model / kManifestName);
  load(model);  // as older models do
  EXPECT_NE(verify(model).find("config and tokenizer files have none"), std::string::npos);
  with({std::string(kManifestName)});
  EXPECT_TRUE(throws_error([&] { load(model); }, "is of another conversion"));
  // A whole one.
  with({"config.json", "tokenizer.json", "README.md", std::string(kManifestName), shard(1),
        shard(2), shard(3)});
  EXPECT_EQ(verify(model), "");
}

TEST(ModelManifest, VerifyFindsEveryChangedFile) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  write_model(model, 'x');
  for (const char* name : {"config.json", "tokenizer.json", "README.md"}) {
    const std::string good = contents(model / name);
    std::string other = good;
    other.back() = static_cast<char>(other.back() ^ 1);
    for (const std::string& bad : {other, good + " ", good.substr(1), std::string()}) {
      dir.write(fs::path("model") / name, bad);
      EXPECT_TRUE(throws_error([&] { verify(model); },
                               (model / name).string() + " is damaged, or was changed"));
      load(model);  // who edits a config means it
    }
    fs::remove(model / name);
    EXPECT_TRUE(throws_error([&] { verify(model); }, std::string(name) + " is missing"));
    // A link to the same.
    dir.write("blob", good);
    fs::create_symlink(dir.path() / "blob", model / name);
    EXPECT_EQ(verify(model), "");
    fs::remove(model / name);
    fs::create_symlink(dir.path() / "nowhere", model / name);
    EXPECT_TRUE(throws_error([&] { verify(model); }, std::string(name)));
    fs::remove(model / name);
    dir.write(fs::path("model") / name, good);
  }
  dir.write("model/notes.txt", "what it does not name");
  EXPECT_EQ(verify(model), "");
}

TEST(ModelManifest, MayBeHostile) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  write_model(model, 'x');
  const json good = json::parse(contents(model / kManifestName));
  const auto refused = [&](const std::string& text, const std::string& part) {
    dir.write(fs::path("model") / kManifestName, text);
    EXPECT_TRUE(throws_error([&] { load(model); }, part)) << text.substr(0, 200);
  };
  const auto changed = [&](const std::function<void(json&)>& change) {
    json bad = good;
    change(bad);
    return bad.dump();
  };
  refused("", "invalid JSON");
  refused("[]", "expected an object");
  refused("{}", "version");
  refused(std::string(1000, '['), kManifestName.data());
  refused(changed([](json& bad) { bad["version"] = 2; }), "supported is 1");
  refused(changed([](json& bad) { bad["version"] = "1"; }), "version");
  refused(changed([](json& bad) { bad["more"] = 1; }), "unknown key");
  refused(changed([](json& bad) { bad["id"] = "0123456789abcdeg"; }), "hexadecimal");
  refused(changed([](json& bad) { bad["id"] = "0123"; }), "hexadecimal");
  refused(changed([](json& bad) { bad["id"] = "0123456789abcdef"; }), "is not that of its files");
  refused(changed([](json& bad) { bad["files"].erase("config.json"); }), "not that of its files");
  refused(changed([](json& bad) { bad["files"]["x"] = {{"bytes", 1}}; }), "crc32c");
  refused(changed([](json& bad) { bad["files"]["config.json"]["bytes"] = -1; }), "bytes");
  refused(changed([](json& bad) { bad["files"]["config.json"]["crc32c"] = 5; }), "crc32c");
  refused(changed([](json& bad) { bad["files"] = json::array(); }), "files");
}

// A name that leads out of the directory is looked for in it.
TEST(ModelManifest, NamesStayInTheDirectory) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  write_model(model, 'x');
  dir.write("secret", "x");
  ModelManifest manifest = *read_manifest(model);
  manifest.files["../secret"] = {.bytes = 1, .crc32c = "00000000"};
  manifest.id = conversion_id(manifest.files);
  for (int number = 1; number <= 3; ++number) {  // as of this conversion
    std::string bytes = contents(model / shard(number));
    const std::string old = read_manifest(model)->id;
    bytes.replace(bytes.find(old), old.size(), manifest.id);
    dir.write(fs::path("model") / shard(number), bytes);
  }
  dir.write(fs::path("model") / kManifestName, to_json(manifest));
  EXPECT_TRUE(throws_error([&] { verify(model); }, "secret"));
}

// While a converter replaces a model of three files, again and again, who loads it gets the older
// or the newer one.
TEST(ModelManifest, AReaderGetsOneModel) {
  constexpr int kLoads = testing::kSanitized ? 200 : 2000;
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  write_model(model, 'x');
  std::jthread writer([&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) {
      write_model(model, i % 2 == 0 ? 'y' : 'x', Existing::replace);
    }
  });
  int older = 0;
  for (int i = 0; i < kLoads; ++i) {
    const OpenDirectory directory(model);
    const std::string config = read_text_file(directory / "config.json", 100);
    const char value = config[7];
    EXPECT_EQ(config, std::string("{\"a\": \"") + value + "\"}");
    const Checkpoint checkpoint(directory);
    EXPECT_EQ(ModelFile(checkpoint).verify({}), "");
    for (const std::string& name : checkpoint.names()) {
      for (std::byte byte : checkpoint.find(name)->bytes) {
        EXPECT_EQ(static_cast<char>(byte), value);
      }
    }
    older += value == 'x' ? 1 : 0;
  }
  writer.request_stop();
  writer.join();
  EXPECT_GT(older, 0);
  EXPECT_LT(older, kLoads);
}

TEST(ModelManifest, ReplacingAModelLosesNothingElse) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  write_model(model, 'x');
  write_model(model, 'y', Existing::replace);
  EXPECT_EQ(verify(model), "");
  for (const char* name : {"thesis.txt", "LICENSE", ".gitattributes", "original/x"}) {
    dir.write(fs::path("model") / name, "mine");
    EXPECT_TRUE(
        throws_error([&] { write_model(model, 'z', Existing::replace); },
                     "is not replaced: it has \"" + fs::path(name).begin()->string() + "\""));
    fs::remove_all(model / *fs::path(name).begin());
  }
  // Without a manifest by names.
  fs::remove(model / kManifestName);
  dir.write("model/LICENSE.txt", "theirs");
  dir.write("model/vocab.json", "{}");
  write_model(model, 'x', Existing::replace);
  EXPECT_FALSE(fs::exists(model / "vocab.json"));
  fs::remove(model / kManifestName);
  dir.write("model/pytorch_model.bin", "weights");
  EXPECT_TRUE(throws_error([&] { write_model(model, 'y', Existing::replace); },
                           "it has \"pytorch_model.bin\", which no conversion wrote"));
  fs::remove(model / "pytorch_model.bin");
  // It appears while the model is written.
  {
    ModelWriter writer(model, {.existing = Existing::replace});
    writer.write_text("config.json", "{}");
    writer.add("a", StoredTensor{.dtype = "U8", .shape = {0}, .bytes = {}});
    dir.write("model/thesis.txt", "mine");
    EXPECT_TRUE(throws_error([&] { writer.finish(); }, "thesis.txt"));
  }
  EXPECT_EQ(contents(model / "thesis.txt"), "mine");
}

}  // namespace
}  // namespace sparsellm
