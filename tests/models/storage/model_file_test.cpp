#include "models/storage/model_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "models/storage/model_writer.h"
#include "sparse/registry.h"
#include "tests/models/expect_error.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_message;
using testing::TempDir;
using testing::TestTensor;
using testing::write_safetensors;

// Half of the elements are zeros.
OwnedTensor random_weight(DType dtype, int64_t rows, int64_t columns, uint64_t seed) {
  OwnedTensor weight = allocate_tensor({}, dtype, {rows, columns}, "a weight");
  testing::Random random(seed);
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      weight.view.data<T>()[i] =
          from_float<T>(random.below(2) == 0 ? 0.0f : static_cast<float>(random.uniform(0.5, 2)));
    }
  });
  return weight;
}

struct Named {
  std::string name;
  OwnedTensor dense;
};

struct Shape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// A weight "layers.<i>.weight" for each format that keeps values and each dtype, and a plain
// tensor.
std::vector<Named> write_model(const fs::path& output, ThreadPool& threads, Shape shape,
                               std::initializer_list<DType> dtypes,
                               int64_t max_shard_bytes = 1 << 30) {
  ModelWriter writer(output, {.max_shard_bytes = max_shard_bytes, .header_bytes = 128});
  writer.write_text("config.json", "{}");
  const std::string norm = "norm12";
  writer.add("norm.weight",
             StoredTensor{.dtype = "F16", .shape = {3}, .bytes = std::as_bytes(std::span(norm))});
  std::vector<Named> weights;
  for (const WeightFormat* format : exact_formats()) {
    for (DType dtype : dtypes) {
      const size_t i = weights.size();
      Named named{fmt::format("layers.{}.weight", i),
                  random_weight(dtype, shape.rows, shape.columns, 10 + i)};
      if (format->why_not(named.dense.view).empty()) {
        writer.add(named.name, format->encode(named.dense.view, threads));
        weights.push_back(std::move(named));
      }
    }
  }
  writer.finish();
  return weights;
}

void expect_weight(const ModelFile& model, const Named& named, ThreadPool& threads) {
  const std::optional<EncodedWeight> weight = model.encoded(named.name);
  ASSERT_TRUE(weight.has_value());
  const OwnedTensor dense = weight_format(weight->format).decode(*weight, threads);
  ASSERT_EQ(dense.view.bytes(), named.dense.view.bytes());
  EXPECT_EQ(std::memcmp(dense.view.raw(), named.dense.view.raw(),
                        static_cast<size_t>(dense.view.bytes())),
            0)
      << named.name;
}

TEST(ModelFile, ReadsWhatWasWritten) {
  ThreadPool threads(2);
  for (int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{2000}}) {
    const TempDir dir;
    const fs::path output = dir.path() / "out";
    const std::vector<Named> weights = write_model(
        output, threads, {33, 17}, {DType::f16, DType::bf16, DType::f32}, max_shard_bytes);
    const Checkpoint checkpoint(output);
    EXPECT_EQ(checkpoint.files().size() > 1, max_shard_bytes == 2000);
    const ModelFile model(checkpoint);

    EXPECT_EQ(model.weight_names().size(), weights.size());
    size_t parts = 0;
    for (const Named& named : weights) {
      expect_weight(model, named, threads);
      const std::optional<EncodedWeight> weight = model.unchecked(named.name);
      const ModelFile::Weight* found = model.find(named.name);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->bytes, weight->bytes());
      EXPECT_EQ(found->header.rows, 33);
      EXPECT_EQ(found->header.columns, 17);
      EXPECT_EQ(found->header.nonzeros, weight->nonzeros);
      for (const EncodedPart& part : weight->parts) {
        EXPECT_EQ(part.memory.data(), nullptr) << "parts are aligned in the file";
        EXPECT_TRUE(model.is_part(part_prefix(named.name, weight->format) + part.name));
        ++parts;
      }
    }
    EXPECT_FALSE(model.is_part("norm.weight"));
    EXPECT_FALSE(model.is_part("layers.0.weight"));
    EXPECT_EQ(model.find("norm.weight"), nullptr);
    EXPECT_FALSE(model.encoded("norm.weight").has_value());
    EXPECT_GE(checkpoint.names().size(), parts + 1);

    int64_t last = 0;
    model.verify([&](int64_t done, int64_t total) {
      EXPECT_GE(done, last);
      EXPECT_EQ(total, checkpoint.bytes());
      last = done;
    });
    EXPECT_EQ(last, checkpoint.bytes());
    model.verify({});
  }
}

constexpr const char* kDense =
    R"({"format":"dense","version":1,"dtype":"F16","shape":[2,3],"nnz":5})";

std::map<std::string, std::string> metadata_of(const std::string& weight, const std::string& text) {
  return {{"sparsellm.version", "1"}, {"format", "pt"}, {weight, text}};
}

TestTensor dense_values(const std::string& weight) {
  return {weight + ".dense.values", "F16", {6}, "aabbccddeeff"};
}

TEST(ModelFile, CopiesPartsThatAreNotAligned) {
  const TempDir dir;
  bool viewed = false;
  bool copied = false;
  for (size_t spaces = 0; spaces < 8; ++spaces) {
    dir.write("model.safetensors",
              write_safetensors(std::vector{dense_values("w")}, metadata_of("w", kDense), spaces));
    const Checkpoint checkpoint(dir.path());
    const ModelFile model(checkpoint);
    const std::optional<EncodedWeight> weight = model.unchecked("w");
    ASSERT_TRUE(weight.has_value());
    const EncodedPart& values = weight->part("values");
    EXPECT_NE(model.encoded("w")->part("values").memory.data(), nullptr);
    (values.memory.data() == nullptr ? viewed : copied) = true;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(values.bytes.data()) % 2, 0u);
    EXPECT_EQ(std::memcmp(values.bytes.data(), "aabbccddeeff", 12), 0);
  }
  EXPECT_TRUE(viewed);
  EXPECT_TRUE(copied);
}

TEST(ModelFile, FindsNamesWithoutTheirPrefix) {
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(std::vector{dense_values("layers.0.weight")},
                                                   metadata_of("layers.0.weight", kDense)));
  const Checkpoint checkpoint(dir.path());
  const ModelFile model(checkpoint);
  for (const char* name :
       {"layers.0.weight", "model.layers.0.weight", "model.decoder.layers.0.weight"}) {
    EXPECT_NE(model.find(name), nullptr) << name;
    EXPECT_TRUE(model.encoded(name).has_value()) << name;
  }
  EXPECT_EQ(model.find("decoder.layers.0.weight"), nullptr);
  EXPECT_EQ(model.weight_names(), std::vector<std::string>{"layers.0.weight"});
}

TEST(ModelFile, APlainCheckpointHasNoEncodedWeights) {
  const TempDir dir;
  // Names and metadata that mean something only in a converted model.
  dir.write("model.safetensors", write_safetensors(std::vector{dense_values("a.weight")},
                                                   {{"format", "pt"}, {"a.weight", "x"}}));
  const Checkpoint checkpoint(dir.path());
  const ModelFile model(checkpoint);
  EXPECT_EQ(model.weight_names(), std::vector<std::string>{});
  EXPECT_FALSE(model.is_part("a.weight.dense.values"));
  expect_message(error_of([&] { model.verify({}); }), "has no checksums");
}

// The message for a file; empty if all of its weights can be had.
std::string model_error(const std::vector<TestTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(tensors, metadata));
  const Checkpoint checkpoint(dir.path());
  std::string error = error_of([&] {
    const ModelFile model(checkpoint);
    for (const std::string& name : model.weight_names()) {
      model.encoded(name);
    }
  });
  if (!error.empty()) {
    expect_message(error, dir.path().string());
  }
  return error;
}

TEST(ModelFile, RefusesBadMetadata) {
  struct Case {
    const char* text;
    const char* fragment;
  };
  const Case cases[] = {
      {"", "invalid JSON"},
      {"5", "expected an object"},
      {R"({"format":"dense"})", "is missing"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[2,3],"nnz":5,"more":1})",
       R"(the unknown key "more")"},
      {R"({"format":"dense","format":"dense","version":1})", "is there twice"},
      {R"({"format":"zip","version":1,"dtype":"F16","shape":[2,3],"nnz":5})",
       R"(the unknown format "zip"; known are dense)"},
      {R"({"format":"den\nse","version":1,"dtype":"F16","shape":[2,3],"nnz":5})", R"("den\nse")"},
      {R"({"format":1,"version":1,"dtype":"F16","shape":[2,3],"nnz":5})", "format is 1"},
      {R"({"format":"dense","version":99,"dtype":"F16","shape":[2,3],"nnz":5})", "version 99"},
      {R"({"format":"dense","version":-1,"dtype":"F16","shape":[2,3],"nnz":5})", "version is -1"},
      {R"({"format":"dense","version":4294967297,"dtype":"F16","shape":[2,3],"nnz":5})",
       "version is 4294967297"},
      {R"({"format":"dense","version":1,"dtype":"I8","shape":[2,3],"nnz":5})",
       R"(dtype is "I8"; expected F16, BF16 or F32)"},
      {R"({"format":"dense","version":1,"dtype":"BF16","shape":[2,3],"nnz":5})",
       "is F16, not BF16"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[6],"nnz":5})", "holds 1 numbers"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[[2],3],"nnz":5})",
       "nested more than 2"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[2,4],"nnz":5})", "has 12 bytes"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[0,3],"nnz":0})", "shape holds 0"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[-2,-3],"nnz":5})", "shape holds -2"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[4611686018427387904,4],"nnz":5})",
       "does not fit 64 bits"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[4611686018427387904,1],"nnz":5})",
       "does not fit 64 bits"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[2,3],"nnz":7})", "7 nonzeros"},
      {R"({"format":"dense","version":1,"dtype":"F16","shape":[2,3],"nnz":-1})", "nnz is -1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const std::string error = model_error({dense_values("w")}, metadata_of("w", c.text));
    expect_message(error, c.fragment);
    expect_message(error, R"(the weight "w")");
  }
  EXPECT_EQ(model_error({dense_values("w")}, metadata_of("w", kDense)), "");
}

TEST(ModelFile, RefusesPartsThatDoNotFit) {
  const auto metadata = metadata_of("a.weight", kDense);
  const TestTensor values = dense_values("a.weight");
  const auto changed = [&](const std::function<void(TestTensor&)>& change) {
    TestTensor copy = values;
    change(copy);
    return model_error({copy}, metadata);
  };
  EXPECT_EQ(model_error({values}, metadata), "");
  expect_message(model_error({}, metadata), R"(has no tensors "a.weight.dense."*)");
  expect_message(changed([](TestTensor& t) { t.name = "a.weight.dense.other"; }),
                 "has no part values");
  expect_message(changed([](TestTensor& t) { t.shape = {2, 3}; }), "has 2 dimensions; expected 1");
  expect_message(changed([](TestTensor& t) { t.dtype = "I16"; }), R"(the part "values" is I16)");
  expect_message(changed([](TestTensor& t) { t.dtype = "U16"; }), "is U16, not F16");
  expect_message(changed([](TestTensor& t) {
                   t.shape = {5};
                   t.bytes.resize(10);
                 }),
                 "has 10 bytes");
  expect_message(model_error({values, {"a.weight.dense.more", "U8", {1}, "x"}}, metadata),
                 "has 2 parts, not 1");
  expect_message(model_error({values, {"a.weight", "F16", {6}, values.bytes}}, metadata),
                 "is there twice, plain and in the format dense");
  expect_message(model_error({values, dense_values("b.weight")}, metadata),
                 R"(the tensor "b.weight.dense.values" is a part of a weight that the metadata)");
  // A module that is called like a format is none.
  EXPECT_EQ(model_error({values, {"pooler.dense.weight", "F16", {1}, "xx"}}, metadata), "");

  auto newer = metadata;
  newer["sparsellm.version"] = "2";
  expect_message(model_error({values}, newer), R"(has the version "2")");
}

TEST(ModelFile, RefusesWeightsInTwoFiles) {
  const TempDir dir;
  const TestTensor one[] = {dense_values("w")};
  const TestTensor two[] = {{"x", "U8", {1}, "x"}};
  const TestTensor plain[] = {{"w", "F16", {2, 3}, "aabbccddeeff"}};
  dir.write("model.safetensors.index.json",
            R"({"weight_map":{"w.dense.values":"one.safetensors","x":"two.safetensors"}})");
  dir.write("one.safetensors", write_safetensors(one, metadata_of("w", kDense)));
  const auto error = [&] {
    return error_of([&] {
      const Checkpoint checkpoint(dir.path());
      const ModelFile model(checkpoint);
    });
  };
  dir.write("two.safetensors", write_safetensors(two, {}));
  EXPECT_EQ(error(), "");
  // The parts have to be in the file that describes them.
  dir.write("two.safetensors", write_safetensors(two, metadata_of("w", kDense)));
  expect_message(error(), "has no tensors");
  dir.write("model.safetensors.index.json",
            R"({"weight_map":{"w.dense.values":"one.safetensors","w":"two.safetensors"}})");
  dir.write("two.safetensors", write_safetensors(plain, {}));
  expect_message(error(), "is there twice, plain");
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// What loading, and then verify(), says of a model with these bytes.
std::string verify_error(const TempDir& dir, const std::string& bytes) {
  dir.write("model.safetensors", bytes);
  return error_of([&] {
    const Checkpoint checkpoint(dir.path());
    const ModelFile model(checkpoint);
    for (const std::string& name : model.weight_names()) {
      model.encoded(name);
    }
    model.verify({});
  });
}

TEST(ModelFile, EveryDamageIsFound) {
  ThreadPool threads(1);
  const TempDir written;
  write_model(written.path() / "out", threads, {5, 3}, {DType::f16});
  const std::string good = contents(written.path() / "out/model.safetensors");
  const TempDir dir;
  for (const char* name : {"config.json", kManifestName.data()}) {
    dir.write(name, contents(written.path() / "out" / name));
  }
  ASSERT_EQ(verify_error(dir, good), "");

  // Spaces after the header may become other white space, which means the same.
  const size_t header_end = good.rfind('}', good.find(std::string(8, ' ')));
  ASSERT_NE(header_end, std::string::npos);
  testing::Random random(11);
  int64_t by_checksum = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    // Half of the time a single bit.
    const int64_t change = random.below(2) == 0 ? 1 << random.below(8) : 1 + random.below(255);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ change);
    const bool is_white = std::string_view(" \t\r\n").find(bad[at]) != std::string_view::npos;
    if (at <= header_end || good[at] != ' ' || !is_white) {
      const std::string error = verify_error(dir, bad);
      EXPECT_NE(error, "") << "byte " << at;
      EXPECT_EQ(error.find('\n'), std::string::npos);
      by_checksum += error.find("is damaged: the tensor") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(by_checksum, 0);
  for (size_t size = 0; size < good.size(); size += 1 + size / 50) {
    EXPECT_NE(verify_error(dir, good.substr(0, size)), "") << size << " bytes";
  }
  EXPECT_NE(verify_error(dir, good + "x"), "");

  std::string bad = good;
  const size_t nnz = bad.find("nnz");
  ASSERT_NE(nnz, std::string::npos);
  char& digit = bad[bad.find_first_of("0123456789", nnz)];
  digit = digit == '1' ? '2' : '1';
  expect_message(verify_error(dir, bad), "is damaged: its header");
}

// Tensors without elements lie at the same place.
TEST(ModelFile, VerifiesManyEmptyTensors) {
  const TempDir dir;
  const std::string bytes = "norm12";
  ModelWriter writer(dir.path() / "out", {});
  writer.write_text("config.json", "{}");
  for (int i = 0; i < 200; ++i) {
    writer.add(fmt::format("empty.{}", i), StoredTensor{.dtype = "F16", .shape = {0}, .bytes = {}});
  }
  writer.add("norm.weight",
             StoredTensor{.dtype = "F16", .shape = {3}, .bytes = std::as_bytes(std::span(bytes))});
  writer.finish();
  const Checkpoint checkpoint(dir.path() / "out");
  const ModelFile model(checkpoint);
  int64_t tensors = 0;
  EXPECT_EQ(model.verify([&](int64_t, int64_t) { ++tensors; }), "");
  EXPECT_EQ(tensors, 201);
}

TEST(ModelFile, AFileThatBecomesShorterIsAnError) {
  ThreadPool threads(1);
  const TempDir dir;
  write_model(dir.path() / "out", threads, {5, 3}, {DType::f16});
  const Checkpoint checkpoint(dir.path() / "out");
  const ModelFile model(checkpoint);
  const fs::path file = dir.path() / "out/model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_message(error_of([&] { model.verify({}); }), "it has become shorter");
}

}  // namespace
}  // namespace sparsellm
