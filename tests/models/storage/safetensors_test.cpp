#include "models/storage/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/models/expect_error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_message;
using testing::TempDir;

std::string length_prefix(uint64_t length) {
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

std::string safetensors(std::string_view header, std::string_view data) {
  return length_prefix(header.size()) + std::string(header) + std::string(data);
}

// One tensor of 4 * count bytes.
std::string one_tensor(const std::string& name, int count) {
  return safetensors(fmt::format(R"({{"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}})",
                                 name, count, 4 * count),
                     std::string(static_cast<size_t>(4 * count), 'x'));
}

// The message for a file with these bytes; empty if it loads.
std::string file_error(std::string_view bytes) {
  const TempDir dir;
  const fs::path path = dir.write("model.safetensors", bytes);
  std::string error = error_of([&] { SafetensorsFile file(path); });
  if (!error.empty()) {
    expect_message(error, path.string());
  }
  return error;
}

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt","note":"x"},)"
    R"("b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
    R"("empty":{"dtype":"BF16","shape":[0,7],"data_offsets":[4,4]},)"
    R"("c":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}   )";
constexpr std::string_view kData = "aaaabbbbbbbbbbbbcccccccc";

TEST(SafetensorsFile, ReadsTensorsAndMetadata) {
  const TempDir dir;
  const SafetensorsFile file(dir.write("f.safetensors", safetensors(kHeader, kData)));

  EXPECT_EQ(file.path(), dir.path() / "f.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "x"}}));
  ASSERT_EQ(file.tensors().size(), 4u);
  const auto text = [&](std::string_view name) {
    const auto bytes = file.tensors().find(name)->second.bytes;
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(text("a"), "aaaa");
  EXPECT_EQ(text("b"), "bbbbbbbbbbbb");
  EXPECT_EQ(text("c"), "cccccccc");
  EXPECT_EQ(text("empty"), "");
  EXPECT_EQ(file.tensors().at("a").shape, std::vector<int64_t>{});
  EXPECT_EQ(file.tensors().at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.tensors().at("empty").shape, (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(file.tensors().at("c").dtype, "I64");
}

TEST(SafetensorsFile, ReadsAFileWithoutTensors) {
  EXPECT_EQ(file_error(safetensors("{}", "")), "");
  EXPECT_EQ(file_error(safetensors(R"({"__metadata__":{}})", "")), "");
}

TEST(SafetensorsFile, ViewsSurviveAMove) {
  const TempDir dir;
  SafetensorsFile file(dir.write("f.safetensors", safetensors(kHeader, kData)));
  const StoredTensor* c = &file.tensors().at("c");
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(c, &moved.tensors().at("c"));
  EXPECT_EQ(std::memcmp(c->bytes.data(), "cccccccc", 8), 0);
}

TEST(SafetensorsFile, KnowsTheSizeOfEveryType) {
  const std::pair<const char*, int> bits_of_types[] = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  for (const auto& [dtype, bits] : bits_of_types) {
    SCOPED_TRACE(dtype);
    const std::string header =
        fmt::format(R"({{"t":{{"dtype":"{}","shape":[2,4],"data_offsets":[0,{}]}}}})", dtype, bits);
    EXPECT_EQ(file_error(safetensors(header, std::string(static_cast<size_t>(bits), 'x'))), "");
    expect_message(file_error(safetensors(header, std::string(static_cast<size_t>(bits - 1), 'x'))),
                   "cut off");
  }
}

TEST(StoredTensor, GivesTheDTypeOfFloats) {
  const auto dtype = [](const char* name) {
    return StoredTensor{.dtype = name, .shape = {}, .bytes = {}}.float_dtype("lm_head.weight");
  };
  EXPECT_EQ(dtype("F32"), DType::f32);
  EXPECT_EQ(dtype("F16"), DType::f16);
  EXPECT_EQ(dtype("BF16"), DType::bf16);
  const std::string error = error_of([&] { dtype("I64"); });
  expect_message(error, "lm_head.weight");
  expect_message(error, "I64");
}

TEST(SafetensorsFile, RefusesDamagedFiles) {
  struct Case {
    const char* what;
    std::string bytes;
    const char* fragment;
  };
  const std::string good = safetensors(kHeader, kData);
  const Case cases[] = {
      {"empty file", "", "0 bytes are too few"},
      {"seven bytes", "1234567", "7 bytes are too few"},
      {"no header", length_prefix(0), "invalid JSON"},
      {"header beyond the end", length_prefix(3) + "{}", "the header has 3 bytes"},
      {"as long as allowed", length_prefix(100'000'000) + "{}", "but the file only 10;"},
      {"header longer than allowed", length_prefix(100'000'001) + "{}", "at most 100000000"},
      {"length 2^64 - 1", length_prefix(UINT64_MAX) + "{}", "at most 100000000"},
      {"length 2^63", length_prefix(uint64_t{1} << 63) + "{}", "at most 100000000"},
      {"header cut off", good.substr(0, 40), "cut off or damaged"},
      {"data cut off", good.substr(0, good.size() - 1), "cut off or damaged"},
      {"byte after the data", good + "x", "1 bytes after the last tensor"},
      {"data without tensors", safetensors("{}", "x"), "1 bytes after the last tensor"},
      {"another format", "PK\x03\x04 zip archive....", "is it a safetensors file?"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    expect_message(file_error(c.bytes), c.fragment);
  }
}

TEST(SafetensorsFile, RefusesBadHeaders) {
  struct Case {
    std::string_view header;
    std::string_view fragment;
  };
  const Case cases[] = {
      {"[]", "the header is an array; expected an object"},
      {"null", "the header is null; expected an object"},
      {"7", "the header is 7; expected an object"},
      {"{", "invalid JSON at byte"},
      {"{}{}", "invalid JSON at byte"},
      {std::string_view("{}\0", 3), "invalid JSON at byte 2"},
      {"{\"a\xff\":{}}", "invalid JSON at byte"},
      {R"({"a":1e999})", "number out of range at byte"},
      {R"({"a":null})", R"(tensor "a" is null; expected an object)"},
      {R"({"a":[]})", R"(tensor "a" is an array; expected an object)"},
      {R"({"a":{}})", R"(tensor "a": dtype is missing)"},
      {R"({"a":{"shape":[8],"data_offsets":[0,8]}})", "dtype is missing"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", "shape is missing"},
      {R"({"a":{"dtype":"U8","shape":[8]}})", "data_offsets is missing"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"codec":1}})",
       R"(the unknown key "codec")"},
      {R"({"a":{"dtype":8,"shape":[8],"data_offsets":[0,8]}})", "dtype is 8; expected a string"},
      {R"({"a":{"dtype":"F128","shape":[8],"data_offsets":[0,8]}})", R"(dtype is "F128")"},
      {R"({"a":{"dtype":"u8","shape":[8],"data_offsets":[0,8]}})", R"(dtype is "u8")"},
      {R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", "shape is 8; expected an array"},
      {R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,8]}})", "shape is an object"},
      {R"({"a":{"dtype":"U8","shape":["8"],"data_offsets":[0,8]}})", R"(shape holds "8")"},
      {R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})", "shape holds 8.0"},
      {R"({"a":{"dtype":"U8","shape":[true],"data_offsets":[0,8]}})", "shape holds true"},
      {R"({"a":{"dtype":"U8","shape":[null],"data_offsets":[0,8]}})", "shape holds null"},
      {R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})", "shape holds -8"},
      {R"({"a":{"dtype":"U8","shape":[-2,-4],"data_offsets":[0,8]}})", "shape holds -2"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})",
       "shape holds 9223372036854775808"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551624],"data_offsets":[0,8]}})",
       "shape holds 1.8446744073709552e+19"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
       "does not fit 64 bits"},
      {R"({"a":{"dtype":"U64","shape":[2305843009213693953],"data_offsets":[0,8]}})",
       "does not fit 64 bits"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})",
       "does not fit 64 bits"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})", "9 dimensions"},
      {R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}})",
       "has 8 bytes of data, but U8 [7] takes 7"},
      {R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,8]}})",
       "has 8 bytes of data, but F32 [8] takes 32"},
      {R"({"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}})", "do not fill whole bytes"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})", "data_offsets holds 1 numbers"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", "holds 3 numbers"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", "begins at byte 8"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}})", "data_offsets holds -8"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8.0]}})", "data_offsets holds 8.0"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[1,9]}})", "ends at byte 9"},
      {R"({"a":{"dtype":"U8","shape":[7],)"
       R"("data_offsets":[9223372036854775800,9223372036854775807]}})",
       "ends at byte 9223372036854775807"},
      {R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})",
       R"(1 bytes in front of tensor "a")"},
      {R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})", "1 bytes after the last tensor"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       R"(1 bytes in front of tensor "b")"},
      {R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       R"(tensor "b" overlaps)"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
       R"(overlaps)"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}})",
       R"(tensor "b" overlaps)"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       R"(the key "a" is there twice)"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})",
       R"(the key "dtype" is there twice)"},
      {R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", "nested more than 3"},
      {R"({"__metadata__":null})", "the header: __metadata__ is null; expected an object"},
      {R"({"__metadata__":"pt"})", "__metadata__ is"},
      {R"({"__metadata__":{"version":1}})", "__metadata__.version is 1; expected a string"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", R"(the key "a" is there twice)"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.header);
    expect_message(file_error(safetensors(c.header, "12345678")), c.fragment);
  }
}

TEST(SafetensorsFile, DeepNestingIsAnErrorAndNotAStackOverflow) {
  const std::string deep(5'000'000, '[');
  expect_message(file_error(safetensors(deep, "")), "is an array");
  expect_message(file_error(safetensors("{\"a\":" + deep, "")), "is an array");
  expect_message(file_error(safetensors("{\"a\":{\"shape\":" + deep, "")), "nested");
  std::string objects;
  for (int i = 0; i < 500'000; ++i) {
    objects += "{\"a\":";
  }
  expect_message(file_error(safetensors(objects, "")), "unknown key");
}

TEST(SafetensorsFile, NamesInMessagesAreShortAndOnOneLine) {
  const std::string name(1'000'000, 'n');
  expect_message(file_error(safetensors("{\"" + name + "\":1}", "")), "nnn\"... is 1");
  expect_message(file_error(safetensors(R"({"a\nb\u0000":1})", "")), R"("a\nb\u0000" is 1)");
  expect_message(file_error(safetensors("{\"\xc3\xa9\":1}", "")), R"("\u00e9" is 1)");
  const std::string value = "\"" + name + "\"";
  expect_message(file_error(safetensors(
                     "{\"a\":{\"dtype\":" + value + ",\"shape\":[],\"data_offsets\":[0,0]}}", "")),
                 "nnn\"...; the safetensors format has no such type");
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
  const TempDir dir;
  expect_message(error_of([&] { SafetensorsFile file(dir.path() / "none"); }), "none");
  expect_message(error_of([&] { SafetensorsFile file(dir.path()); }), "not a regular file");
}

// Whatever the bytes are, the file loads with every tensor inside of it, or is an Error.
TEST(SafetensorsFile, SurvivesRandomMutations) {
  constexpr unsigned kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  constexpr std::string_view kSnippets[] = {"-",
                                            "0",
                                            "9",
                                            "[",
                                            "]",
                                            "{",
                                            "}",
                                            ",",
                                            "\"",
                                            "1e9",
                                            "\"a\":",
                                            "null",
                                            "99999999999999999999",
                                            "\\u0000"};
  const std::string good = safetensors(kHeader, kData);
  const TempDir dir;
  int loaded = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = good;
    for (size_t edits = 1 + below(3); edits > 0 && !bytes.empty(); --edits) {
      const size_t at = below(bytes.size());
      switch (below(5)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes.insert(at, kSnippets[below(std::size(kSnippets))]);
          break;
        case 3:
          bytes.erase(at, 1 + below(4));
          break;
        default:
          bytes[at] = static_cast<char>('0' + below(10));
          break;
      }
    }
    if (below(2) == 0 && bytes.size() > 8 + kData.size()) {  // makes the header's length fit again
      bytes.replace(0, 8, length_prefix(bytes.size() - 8 - kData.size()));
    }
    const fs::path path = dir.write("f.safetensors", bytes);
    try {
      const SafetensorsFile file(path);
      ++loaded;
      size_t total = 0;
      unsigned sum = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        total += tensor.bytes.size();
        for (std::byte byte : tensor.bytes) {
          sum += std::to_integer<unsigned>(byte);
        }
      }
      EXPECT_LE(total, bytes.size());
      EXPECT_LE(sum, 255 * total);
    } catch (const Error& error) {
      expect_message(error.what(), path.string());
    }
  }
  EXPECT_GT(loaded, 0);
}

std::string checkpoint_error(const fs::path& directory) {
  std::string error = error_of([&] { Checkpoint checkpoint(directory); });
  expect_message(error, directory.string());
  return error;
}

TEST(Checkpoint, ReadsASingleFile) {
  const TempDir dir;
  dir.write("model.safetensors", safetensors(kHeader, kData));
  const Checkpoint checkpoint(dir.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c", "empty"}));
  EXPECT_EQ(checkpoint.bytes(), 24);
  EXPECT_EQ(checkpoint.directory().path(), dir.path());
  ASSERT_NE(checkpoint.find("c"), nullptr);
  EXPECT_EQ(checkpoint.find("c")->dtype, "I64");
  EXPECT_EQ(checkpoint.find("d"), nullptr);
  EXPECT_EQ(checkpoint.find(""), nullptr);
}

TEST(Checkpoint, ReadsShards) {
  const TempDir dir;
  dir.write("model-00001-of-00003.safetensors", one_tensor("a", 1));
  dir.write("model-00002-of-00003.safetensors", one_tensor("b", 2));
  dir.write("model-00003-of-00003.safetensors",
            safetensors(R"({"unlisted":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                        R"("c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                        "zzz"));
  dir.write("model.safetensors.index.json",
            R"({"metadata":{"total_size":13.5},"weight_map":{)"
            R"("a":"model-00001-of-00003.safetensors","b":"model-00002-of-00003.safetensors",)"
            R"("c":"model-00003-of-00003.safetensors"}})");
  Checkpoint loaded(dir.path());
  const Checkpoint checkpoint = std::move(loaded);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c", "unlisted"}));
  EXPECT_EQ(checkpoint.bytes(), 4 + 8 + 3);
  EXPECT_EQ(checkpoint.find("b")->shape, std::vector<int64_t>{2});
  EXPECT_EQ(std::memcmp(checkpoint.find("b")->bytes.data(), "xxxxxxxx", 8), 0);
}

TEST(Checkpoint, PrefersTheSingleFile) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", 1));
  dir.write("model.safetensors.index.json", "broken");
  EXPECT_EQ(Checkpoint(dir.path()).names(), std::vector<std::string>{"a"});
}

TEST(Checkpoint, RefusesBadIndexes) {
  struct Case {
    std::string_view index;
    std::string_view fragment;
  };
  const Case cases[] = {
      {"", "invalid JSON"},
      {"[]", "is an array; expected an object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":null})", "weight_map is null"},
      {R"({"weight_map":[]})", "weight_map is an array"},
      {R"({"weight_map":{}})", "names no tensors"},
      {R"({"weight_map":{"a":1}})", "weight_map.a is 1; expected a string"},
      {R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})", "is there twice"},
      {R"({"weight_map":{"a":""}})", R"(tensor "a" into "")"},
      {R"({"weight_map":{"a":".."}})", R"(tensor "a" into "..")"},
      {R"({"weight_map":{"a":"../one.safetensors"}})", "expected a *.safetensors file"},
      {R"({"weight_map":{"a":"/one.safetensors"}})", "expected a *.safetensors file"},
      {R"({"weight_map":{"a":"x/one.safetensors"}})", "expected a *.safetensors file"},
      {R"({"weight_map":{"a":"one.bin"}})", "expected a *.safetensors file"},
      {R"({"weight_map":{"a":"one.safetensors\u0000.safetensors"}})",
       "expected a *.safetensors file"},
      {R"({"weight_map":{"a":"three.safetensors"}})",
       R"(names the shard "three.safetensors", which is not there)"},
      {R"({"weight_map":{"b":"one.safetensors"}})",
       R"(promises tensor "b", which is not in "one.safetensors")"},
      {R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})",
       R"(two.safetensors: tensor "a" is in another shard, too)"},
      {R"({"weight_map":{"a":"folder.safetensors"}})", "not a regular file"},
      {R"({"weight_map":{"a":"broken.safetensors"}})", "broken.safetensors"},
  };
  const TempDir dir;
  dir.write("one.safetensors", one_tensor("a", 1));
  dir.write("two.safetensors",
            safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "zz"));
  dir.write("folder.safetensors/file", "");
  dir.write("broken.safetensors", "");
  for (const Case& c : cases) {
    SCOPED_TRACE(c.index);
    dir.write("model.safetensors.index.json", c.index);
    expect_message(checkpoint_error(dir.path()), c.fragment);
  }
  dir.write("model.safetensors.index.json", "{\"metadata\":" + std::string(1'000'000, '['));
  expect_message(checkpoint_error(dir.path()), "nested more than");
}

TEST(Checkpoint, ExplainsDirectoriesWithoutSafetensors) {
  const TempDir dir;
  expect_message(checkpoint_error(dir.path() / "none"), "does not exist");
  expect_message(checkpoint_error(dir.path()), "has no weights");
  expect_message(checkpoint_error(dir.write("file", "")), "is a file");
  for (const char* name : {"training_args.bin", "pytorch_model.bin.index.json"}) {
    dir.write(name, "");  // which is not weights
    expect_message(
        checkpoint_error(dir.path()),
        dir.path().string() +
            " has no weights: neither model.safetensors nor model.safetensors.index.json "
            "is there");
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin"}) {
    const TempDir old;
    old.write(name, "");
    expect_message(checkpoint_error(old.path()), "tools/bin_to_safetensors.py");
  }
}

TEST(Checkpoint, ReadsTheDemoModels) {
  const Checkpoint llama(testing::data("models/fable-llama-relu-8m"));
  ASSERT_NE(llama.find("model.embed_tokens.weight"), nullptr);
  EXPECT_EQ(llama.find("model.embed_tokens.weight")->shape, (std::vector<int64_t>{4096, 256}));
  EXPECT_EQ(llama.find("model.embed_tokens.weight")->float_dtype("embedding"), DType::f16);
  const Checkpoint opt(testing::data("models/fable-opt-8m"));
  ASSERT_NE(opt.find("model.decoder.embed_positions.weight"), nullptr);
  EXPECT_EQ(opt.find("model.decoder.embed_positions.weight")->shape,
            (std::vector<int64_t>{514, 256}));
}

}  // namespace
}  // namespace sparsellm
