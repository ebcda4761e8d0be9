#include "models/storage/model_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "kernels/base/error.h"
#include "models/storage/model_file.h"
#include "tests/models/expect_error.h"
#include "tests/testing/random.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_message;
using testing::TempDir;
using Existing = OutputDirectory::Existing;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string random_bytes(size_t count, uint64_t seed) {
  testing::Random random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random.below(256));
  }
  return bytes;
}

// A U8 tensor.
void add_bytes(ModelWriter& writer, const std::string& name, const std::string& bytes) {
  writer.add(name,
             StoredTensor{.dtype = "U8", .shape = {std::ssize(bytes)}, .bytes = bytes_of(bytes)});
}

// An encoding in no format that there is: the writer does not look into it.
EncodedWeight toy_weight(int64_t odd) {
  EncodedWeight weight{.format = "toy",
                       .version = 3,
                       .dtype = DType::bf16,
                       .rows = 5,
                       .columns = 7,
                       .nonzeros = 9,
                       .parts = {}};
  auto bytes = new_part<uint8_t>("marks", DType::u8, odd);
  auto words = new_part<uint64_t>("bitmaps", DType::u64, odd + 1);
  auto values = new_part<uint16_t>("values", DType::bf16, odd + 2);
  auto offsets = new_part<uint32_t>("offsets", DType::u32, odd);
  const auto fill = [](auto span, unsigned first) {
    for (auto& value : span) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(first += 77);
    }
  };
  fill(bytes.values, 1);
  fill(words.values, 2);
  fill(values.values, 3);
  fill(offsets.values, 4);
  weight.parts.push_back(std::move(bytes.part));
  weight.parts.push_back(std::move(words.part));
  weight.parts.push_back(std::move(values.part));
  weight.parts.push_back(std::move(offsets.part));
  return weight;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::string> entries(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

bool is_padding(std::string_view name) { return name.starts_with(kPaddingPrefix); }

void expect_tensor(const Checkpoint& checkpoint, const std::string& name,
                   std::span<const std::byte> bytes) {
  const StoredTensor* tensor = checkpoint.find(name);
  ASSERT_NE(tensor, nullptr) << name;
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor->bytes.begin(), tensor->bytes.end()))
      << name;
}

// Every tensor but the padding begins at a multiple of its elements' size.
void expect_aligned(const Checkpoint& checkpoint) {
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::byte* begin = file.file().bytes().data() + file.file().size();
    for (const auto& [name, tensor] : file.tensors()) {
      begin = std::min(begin, tensor.bytes.data());
    }
    EXPECT_EQ((begin - file.file().bytes().data()) % 64, 0);
    for (const auto& [name, tensor] : file.tensors()) {
      const int64_t item = *stored_item_bits(tensor.dtype) / 8;
      EXPECT_EQ((tensor.bytes.data() - file.file().bytes().data()) % item, 0) << name;
      EXPECT_TRUE(!is_padding(name) || tensor.bytes.size() < 8) << name;
    }
  }
}

void write_small_model(const fs::path& output, ModelWriterOptions options = {},
                       const std::string& tensor = "abc") {
  ModelWriter writer(output, std::move(options));
  writer.write_text("config.json", "{}");
  add_bytes(writer, "a", tensor);
  writer.finish();
}

TEST(ModelWriter, WritesTensorsEncodingsAndFiles) {
  const TempDir dir;
  const fs::path tokenizer = dir.write("in/tokenizer.json", "tokens");
  const fs::path output = dir.path() / "out";
  const EncodedWeight first = toy_weight(3);
  const EncodedWeight second = toy_weight(6);
  const std::string floats = random_bytes(24, 1);
  {
    ModelWriter writer(output, {.input = dir.path() / "in"});
    writer.copy_file(tokenizer);
    writer.write_text("config.json", R"({"model_type": "opt"})");
    writer.add("x", {.dtype = "F16", .shape = {3, 1}, .bytes = bytes_of("abcdef")});
    writer.add("m.a.weight", first);
    writer.add("scalar", {.dtype = "F32", .shape = {}, .bytes = bytes_of("1234")});
    writer.add("none", {.dtype = "F64", .shape = {0, 4}, .bytes = {}});
    writer.add("m.b.weight", second);
    writer.add("y", {.dtype = "F64", .shape = {3}, .bytes = bytes_of(floats)});
    EXPECT_FALSE(fs::exists(output));
    writer.finish();
    EXPECT_EQ(entries(dir.path()), (std::set<std::string>{"in", "out"}));
  }
  EXPECT_EQ(entries(dir.path()), (std::set<std::string>{"in", "out"}));
  EXPECT_EQ(entries(output), (std::set<std::string>{"config.json", "model.safetensors",
                                                    std::string(kManifestName), "tokenizer.json"}));
  EXPECT_EQ(contents(output / "tokenizer.json"), "tokens");
  EXPECT_EQ(contents(output / "config.json"), R"({"model_type": "opt"})");

  const Checkpoint checkpoint(output);
  expect_tensor(checkpoint, "x", bytes_of("abcdef"));
  expect_tensor(checkpoint, "scalar", bytes_of("1234"));
  expect_tensor(checkpoint, "none", {});
  expect_tensor(checkpoint, "y", bytes_of(floats));
  EXPECT_EQ(checkpoint.find("x")->dtype, "F16");
  EXPECT_EQ(checkpoint.find("x")->shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(checkpoint.find("scalar")->shape, std::vector<int64_t>{});
  for (const auto& [name, weight] : {std::pair("m.a.weight", &first), {"m.b.weight", &second}}) {
    for (const EncodedPart& part : weight->parts) {
      const std::string part_name = std::string(name) + ".toy." + part.name;
      expect_tensor(checkpoint, part_name, part.bytes);
      EXPECT_EQ(checkpoint.find(part_name)->shape, std::vector<int64_t>{part.count()});
      EXPECT_EQ(checkpoint.find(part_name)->dtype, safetensors_name(part.dtype));
    }
  }
  expect_aligned(checkpoint);

  const auto& metadata = checkpoint.files()[0].metadata();
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("sparsellm.version"), "1");
  EXPECT_EQ(metadata.at("m.a.weight"),
            R"({"format":"toy","version":3,"dtype":"BF16","shape":[5,7],"nnz":9})");
  EXPECT_EQ(metadata.at("crc32c:none"), "00000000");
  EXPECT_EQ(metadata.at("crc32c:scalar"), "f63af4ee");
}

// Files beside the tensors are not taken for some of them, whether they are written or copied.
TEST(ModelWriter, NamesOfTensorFilesAreRefused) {
  const TempDir dir;
  ModelWriter writer(dir.path() / "out", {});
  for (const char* name : {"model.safetensors", "a.safetensors", "b.safetensors.index.json"}) {
    const InputFile file(dir.write(name, "x"));
    const std::string expected = fmt::format("the file \"{}\" would be taken for one", name);
    EXPECT_TRUE(testing::throws_error([&] { writer.copy_file(file); }, expected)) << name;
    EXPECT_TRUE(testing::throws_error([&] { writer.write_text(name, "x"); }, expected)) << name;
  }
  for (const char* name : {"", ".", "..", "a/b"}) {
    EXPECT_TRUE(
        testing::throws_error([&] { writer.write_text(name, "x"); }, "is not the name of a file"))
        << name;
  }
}

// Before it has its name, and only if the check has nothing against it.
TEST(ModelWriter, TheCompleteModelIsChecked) {
  const TempDir dir;
  for (const bool good : {false, true}) {
    ModelWriter writer(dir.path() / "out", {});
    writer.write_text("config.json", "{}");
    add_bytes(writer, "a", "abc");
    int checks = 0;
    const std::string error = error_of([&] {
      writer.finish([&](const fs::path& complete) {
        ++checks;
        EXPECT_FALSE(fs::exists(dir.path() / "out"));
        expect_tensor(Checkpoint(complete), "a", bytes_of("abc"));
        if (!good) {
          throw Error("it is no good");
        }
      });
    });
    EXPECT_EQ(checks, 1);
    EXPECT_EQ(error, good ? "" : "it is no good");
    EXPECT_EQ(fs::exists(dir.path() / "out"), good);
  }
}

TEST(ModelWriter, SplitsTheModelIntoShards) {
  const TempDir dir;
  const fs::path output = dir.path() / "out";
  std::map<std::string, std::string> tensors;
  const EncodedWeight weight = toy_weight(5);
  ASSERT_EQ(weight.bytes(), 87);
  {
    ModelWriter writer(output, {.max_shard_bytes = 100, .header_bytes = 64});
    writer.write_text("config.json", "{}");
    for (const auto& [name, size] :
         {std::pair("a", 60), {"b", 40}, {"c", 1}, {"d", 250}, {"e", 20}}) {
      tensors[name] = random_bytes(static_cast<size_t>(size), 5);
      add_bytes(writer, name, tensors[name]);
    }
    writer.add("w", weight);
    EXPECT_EQ(writer.tensor_bytes(), 371 + weight.bytes() + 5);  // and padding
    writer.finish();
  }
  std::set<std::string> files{"config.json", "model.safetensors.index.json",
                              std::string(kManifestName)};
  for (int i = 1; i <= 5; ++i) {
    files.insert(fmt::format("model-{:05}-of-00005.safetensors", i));
  }
  EXPECT_EQ(entries(output), files);

  const Checkpoint checkpoint(output);
  for (const auto& [name, bytes] : tensors) {
    expect_tensor(checkpoint, name, bytes_of(bytes));
  }
  for (const EncodedPart& part : weight.parts) {
    expect_tensor(checkpoint, "w.toy." + part.name, part.bytes);
  }
  expect_aligned(checkpoint);

  const auto index = nlohmann::json::parse(contents(output / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], checkpoint.bytes());
  const auto& map = index["weight_map"];
  EXPECT_EQ(map.size(), checkpoint.names().size());
  EXPECT_EQ(map["a"], "model-00001-of-00005.safetensors");
  EXPECT_EQ(map["b"], "model-00001-of-00005.safetensors");
  EXPECT_EQ(map["c"], "model-00002-of-00005.safetensors");
  EXPECT_EQ(map["d"], "model-00003-of-00005.safetensors");
  EXPECT_EQ(map["e"], "model-00004-of-00005.safetensors");
  for (const EncodedPart& part : weight.parts) {
    EXPECT_EQ(map["w.toy." + part.name], "model-00005-of-00005.safetensors");
  }
}

TEST(ModelWriter, MovesTheDataIfTheHeaderNeedsMoreRoom) {
  const TempDir dir;
  std::vector<std::string> tensors;
  for (size_t size : {5, 0, 3'500'001, 7, 1'000'000}) {
    tensors.push_back(random_bytes(size, size));
  }
  for (int64_t header_bytes : {1 << 16, 0, 1, 57, 500}) {
    SCOPED_TRACE(header_bytes);
    const fs::path output = dir.path() / fmt::format("{}", header_bytes);
    ModelWriter writer(output, {.header_bytes = header_bytes});
    writer.write_text("config.json", "{}");
    for (size_t i = 0; i < tensors.size(); ++i) {
      add_bytes(writer, fmt::format("tensor {}", i), tensors[i]);
    }
    writer.add("w", toy_weight(7));
    writer.finish();
    const Checkpoint checkpoint(output);
    for (size_t i = 0; i < tensors.size(); ++i) {
      expect_tensor(checkpoint, fmt::format("tensor {}", i), bytes_of(tensors[i]));
    }
    expect_aligned(checkpoint);
  }
}

TEST(ModelWriter, LeavesNothingWithoutFinish) {
  const TempDir dir;
  const std::string large = random_bytes(100'000, 1);
  {
    ModelWriter writer(dir.path() / "out", {.max_shard_bytes = 100'000});
    writer.write_text("config.json", "{}");
    add_bytes(writer, "a", large);
    add_bytes(writer, "b", large);
    EXPECT_EQ(entries(dir.path()).size(), 1u);
  }
  EXPECT_EQ(entries(dir.path()), std::set<std::string>{});
  {
    ModelWriter writer(dir.path() / "out", {});
    for (int i = 0; i < 300; ++i) {  // more than are listed at once
      writer.write_text(fmt::format("{:0200}", i), "");
    }
  }
  EXPECT_EQ(entries(dir.path()), std::set<std::string>{});
  expect_message(error_of([&] {
                   ModelWriter writer(dir.path() / "out", {});
                   add_bytes(writer, "a", large);
                   writer.finish();
                 }),
                 "the model has no config.json");
  expect_message(error_of([&] {
                   ModelWriter writer(dir.path() / "out", {});
                   writer.write_text("config.json", "{}");
                   writer.finish();
                 }),
                 "the model has no tensors");
  EXPECT_EQ(entries(dir.path()), std::set<std::string>{});
}

// Steps of a run; the process ends after this many of them.
void run_and_die(const fs::path& output, int steps, Existing existing) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ModelWriter writer(output, {.existing = existing, .max_shard_bytes = 1000});
    const std::string bytes(900, 'x');
    for (int step = 0; step < steps; ++step) {
      if (step == 0) {
        writer.write_text("config.json", "{}");
      } else {
        add_bytes(writer, fmt::format("{}", step), bytes);
      }
    }
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(ModelWriter, KilledRunsLeaveNothingThatLoads) {
  for (int steps : {0, 1, 2, 4}) {
    SCOPED_TRACE(steps);
    const TempDir dir;
    const fs::path output = dir.path() / "out";
    run_and_die(output, steps, Existing::refuse);
    EXPECT_FALSE(fs::exists(output));
    const std::set<std::string> left = entries(dir.path());
    ASSERT_EQ(left.size(), 1u);
    EXPECT_TRUE(left.begin()->starts_with(".out.partial-"));
    EXPECT_NE(error_of([&] { Checkpoint checkpoint(dir.path() / *left.begin()); }), "");

    write_small_model(output);
    EXPECT_EQ(Checkpoint(output).names(), std::vector<std::string>{"a"});
    EXPECT_EQ(entries(dir.path()).size(), 2u);  // what is not ours stays

    run_and_die(output, steps, Existing::replace);
    expect_tensor(Checkpoint(output), "a", bytes_of("abc"));
  }
}

TEST(ModelWriter, RefusesAnOutputThatExists) {
  const TempDir dir;
  dir.write("file", "");
  fs::create_directory(dir.path() / "empty");
  fs::create_symlink(dir.path() / "nothing", dir.path() / "link");
  write_small_model(dir.path() / "model");
  const auto refusal = [&](const char* name, Existing existing) {
    const auto before = entries(dir.path());
    std::string error =
        error_of([&] { ModelWriter writer(dir.path() / name, {.existing = existing}); });
    EXPECT_EQ(entries(dir.path()), before);
    return error;
  };
  for (const char* name : {"model", "model/", "model/.", "empty/../model"}) {
    expect_message(refusal(name, Existing::refuse), "exists; --force replaces it");
  }
  expect_message(refusal("empty", Existing::refuse),
                 "exists, and is no model directory that could be replaced");
  const std::string cannot_write = "cannot write " + dir.path().string();
  for (Existing existing : {Existing::refuse, Existing::replace}) {
    expect_message(refusal("file", existing), "it is a file");
    expect_message(refusal("link", existing), cannot_write + "/link: No such file or directory");
    expect_message(
        refusal("none/out", existing),
        cannot_write + "/none/out: " + dir.path().string() + "/none: No such file or directory");
    expect_message(refusal("file/out", existing), cannot_write + "/file/out: Not a directory");
    expect_message(error_of([&] { ModelWriter writer("", {.existing = existing}); }), "no name");
  }
  expect_message(error_of([&] { ModelWriter writer("/", {.existing = Existing::replace}); }),
                 "cannot write /: not a new directory");
  // One that appears on the way is not replaced either.
  ModelWriter writer(dir.path() / "new", {});
  writer.write_text("config.json", "{}");
  add_bytes(writer, "a", "x");
  fs::create_directory(dir.path() / "new");
  expect_message(error_of([&] { writer.finish(); }), "cannot rename");
  EXPECT_EQ(entries(dir.path() / "new"), std::set<std::string>{});
}

TEST(ModelWriter, ReplacesNothingThatIsNoModel) {
  const TempDir dir;
  const ModelWriterOptions options{.existing = Existing::replace};
  fs::create_directory(dir.path() / "empty");
  dir.write("home/letter.txt", "dear");
  dir.write("package/config.json", "{}");
  dir.write("weights/model.safetensors", "{}");
  dir.write("folders/model.safetensors", "{}");
  dir.write("folders/config.json/x", "{}");
  dir.write("inner/config.json", "{}");
  dir.write("inner/model.safetensors", "");
  dir.write("inner/LICENSE/letter.txt", "dear");
  for (const char* name : {"empty", "home", "package", "weights", "folders", "inner"}) {
    const fs::path path = dir.path() / name;
    expect_message(error_of([&] { ModelWriter writer(path, options); }),
                   path.string() + " is not replaced");
  }
  // Nor if it is one no longer when the new one is ready.
  const fs::path output = dir.path() / "model";
  write_small_model(output);
  ModelWriter writer(output, options);
  writer.write_text("config.json", "{}");
  add_bytes(writer, "a", "new");
  fs::remove(output / "config.json");
  expect_message(error_of([&] { writer.finish(); }), "is not replaced");
  EXPECT_EQ(entries(output),
            (std::set<std::string>{"model.safetensors", std::string(kManifestName)}));
}

TEST(ModelWriter, ReplacesAModel) {
  const TempDir dir;
  const fs::path output = dir.path() / "out";
  write_small_model(output, {}, "old");
  fs::remove(output / kManifestName);  // as older ones are
  std::ofstream(output / "LICENSE.txt") << "more";
  fs::permissions(output, fs::perms(0750));
  {
    ModelWriter writer(output, {.existing = Existing::replace});
    writer.write_text("config.json", "{}");
    add_bytes(writer, "a", "half");
  }
  expect_tensor(Checkpoint(output), "a", bytes_of("old"));
  EXPECT_TRUE(fs::exists(output / "LICENSE.txt"));

  write_small_model(output, {.existing = Existing::replace}, "new");
  expect_tensor(Checkpoint(output), "a", bytes_of("new"));
  EXPECT_EQ(entries(output), (std::set<std::string>{"config.json", "model.safetensors",
                                                    std::string(kManifestName)}));
  EXPECT_EQ(entries(dir.path()), std::set<std::string>{"out"});
  EXPECT_EQ(fs::status(output).permissions(), fs::perms(0750));

  // Through a link the directory changes, not the link.
  fs::create_directory_symlink(output, dir.path() / "link");
  write_small_model(dir.path() / "link", {.existing = Existing::replace}, "again");
  EXPECT_TRUE(fs::is_symlink(dir.path() / "link"));
  expect_tensor(Checkpoint(output), "a", bytes_of("again"));
  EXPECT_EQ(entries(dir.path()), (std::set<std::string>{"link", "out"}));

  // Also where there is nothing to replace, or no longer.
  write_small_model(dir.path() / "new/", {.existing = Existing::replace}, "x");
  expect_tensor(Checkpoint(dir.path() / "new"), "a", bytes_of("x"));
  ModelWriter writer(output, {.existing = Existing::replace});
  writer.write_text("config.json", "{}");
  add_bytes(writer, "a", "last");
  fs::remove_all(output);
  writer.finish();
  expect_tensor(Checkpoint(output), "a", bytes_of("last"));
}

TEST(ModelWriter, NewDirectoriesAndFilesHaveTheUsualModes) {
  const TempDir dir;
  const mode_t old = ::umask(027);
  write_small_model(dir.path() / "out");
  ::umask(old);
  EXPECT_EQ(fs::status(dir.path() / "out").permissions(), fs::perms(0750));
  EXPECT_EQ(fs::status(dir.path() / "out/model.safetensors").permissions(), fs::perms(0640));
}

TEST(ModelWriter, TheInputIsNeverTheOutput) {
  const TempDir dir;
  const fs::path input = dir.path() / "model";
  write_small_model(input);
  write_small_model(input / "inner");
  fs::create_directory_symlink(input, dir.path() / "link");
  const auto refusal = [&](const fs::path& output, const fs::path& from) {
    return error_of(
        [&] { ModelWriter writer(output, {.existing = Existing::replace, .input = from}); });
  };
  expect_message(refusal(input, input), "would replace the input");
  expect_message(refusal(dir.path() / "link", input), "would replace the input");
  expect_message(refusal(input, dir.path() / "link"), "would replace the input");
  expect_message(refusal(input, input / "inner"), "would replace the input");
  expect_message(refusal(dir.path() / "model/", input), "would replace the input");
  expect_message(refusal(dir.path() / "out", dir.path() / "none"), "cannot read");
  EXPECT_EQ(refusal(dir.path() / "model-2", input), "");
  expect_message(refusal(input / "inner", input), "is inside the input");
}

TEST(ModelWriter, RefusesNames) {
  const TempDir dir;
  ModelWriter writer(dir.path() / "out", {});
  writer.write_text("config.json", "{}");
  add_bytes(writer, "a", "x");
  writer.add("w", toy_weight(1));
  for (const char* name : {"a", "w", "w.toy.values"}) {
    expect_message(error_of([&] { add_bytes(writer, name, "x"); }), "two tensors with the name");
  }
  expect_message(error_of([&] { writer.add("a", toy_weight(1)); }), R"(the name "a")");
  expect_message(error_of([&] { add_bytes(writer, "__metadata__", ""); }), "the name is taken");
  expect_message(error_of([&] { add_bytes(writer, "sparsellm.padding.1", ""); }), "name is taken");
  for (const char* name : {"format", "crc32c:a", "sparsellm.version"}) {
    expect_message(error_of([&] { writer.add(name, toy_weight(1)); }), "cannot be the name");
  }
  EncodedWeight empty = toy_weight(1);
  empty.rows = 0;
  expect_message(error_of([&] { writer.add("v", empty); }), "has 0 x 7 elements");

  for (const char* name : {"", ".", "..", "a/b", "/a"}) {
    expect_message(error_of([&] { writer.write_text(name, ""); }), "is not the name of a file");
  }
  for (const std::string& name :
       std::vector<std::string>{"model.safetensors", "x.safetensors", "shard-00001",
                                "model.safetensors.index.json", std::string(kManifestName)}) {
    expect_message(error_of([&] { writer.write_text(name, ""); }), "would be taken for");
  }
  expect_message(error_of([&] { writer.write_text("config.json", ""); }), "File exists");
  expect_message(error_of([&] { writer.copy_file(dir.path() / "none.json"); }), "none.json");
  expect_message(error_of([&] { writer.copy_file(dir.path()); }), "not a regular file");
  expect_message(
      error_of([&] { writer.add("t", {.dtype = "F128", .shape = {1}, .bytes = bytes_of("x")}); }),
      "unknown dtype");
  for (const auto& shape : {std::vector<int64_t>{2}, {int64_t{1} << 62, 16}}) {
    EXPECT_NE(error_of([&] {
                writer.add("t" + std::to_string(shape.size()),
                           {.dtype = "F32", .shape = shape, .bytes = bytes_of("1234")});
              }),
              "");
  }
  writer.finish();
  EXPECT_EQ(Checkpoint(dir.path() / "out").find("t"), nullptr);
  EXPECT_NE(error_of([&] { writer.finish(); }), "");

  ModelWriter latin(dir.path() / "latin", {});
  latin.write_text("config.json", "{}");
  add_bytes(latin, "\xe9", "x");
  expect_message(error_of([&] { latin.finish(); }), "not UTF-8");
}

// Sets a limit for the size of files, as a full disk would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(ModelWriter, FilesThatCannotGrowAreErrors) {
  const TempDir dir;
  const fs::path output = dir.path() / "out";
  write_small_model(output, {}, "old");
  const std::string large = random_bytes(300'001, 2);
  for (int64_t limit : {0, 5000, 200'000, 300'000}) {
    SCOPED_TRACE(limit);
    const std::string error = error_of([&] {
      ModelWriter writer(output, {.existing = Existing::replace, .header_bytes = 64});
      writer.write_text("config.json", "");
      const FileSizeLimit full(static_cast<rlim_t>(limit));
      add_bytes(writer, "a", large);
      writer.finish();
    });
    expect_message(error, "cannot write " + dir.path().string());
    expect_message(error, "File too large");
    EXPECT_EQ(entries(dir.path()), std::set<std::string>{"out"});
    expect_tensor(Checkpoint(output), "a", bytes_of("old"));
  }
  // Enough for the data, but not for the data that has made room for the header.
  const std::string error = error_of([&] {
    ModelWriter writer(output, {.existing = Existing::replace, .header_bytes = 0});
    writer.write_text("config.json", "{}");
    const FileSizeLimit full(300'001 + 64);
    add_bytes(writer, "a", large);
    writer.finish();
  });
  expect_message(error, "File too large");
  expect_tensor(Checkpoint(output), "a", bytes_of("old"));
}

TEST(ModelWriter, AFullDiskIsAnError) {
  const testing::SmallDisk disk("256k");
  if (!disk.mounted()) {
    GTEST_SKIP() << "may not mount a small file system";
  }
  const fs::path output = disk.path() / "out";
  write_small_model(output, {}, "old");
  const std::string large(400'000, 'x');
  const auto error = [&] {
    return error_of([&] {
      ModelWriter writer(output, {.existing = Existing::replace});
      writer.write_text("config.json", "{}");
      add_bytes(writer, "a", large);
      writer.finish();
    });
  };
  const std::string plain = error();
  expect_message(plain, "shard-00001: No space left on device");
  EXPECT_EQ(plain.find("another run"), std::string::npos);
  EXPECT_EQ(entries(disk.path()), std::set<std::string>{"out"});
  expect_tensor(Checkpoint(output), "a", bytes_of("old"));

  fs::create_directory(disk.path() / ".out.partial-0000abcd");
  expect_message(error(), "another run left " + (disk.path() / ".out.partial-0000abcd").string());
  expect_tensor(Checkpoint(output), "a", bytes_of("old"));
}

}  // namespace
}  // namespace sparsellm
