// Conversions of weights that are stored as the library compressed-tensors does.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/conversion/converted_model.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of;
using testing::contents;
using testing::convert;
using testing::expect_same_bytes;
using testing::expect_same_others;
using testing::expect_same_weights;
using testing::greedy;
using testing::load;
using testing::Model;
using testing::plan;
using testing::TempDir;
using testing::TestTensor;
using testing::verified;

fs::path llama3() { return testing::data("tiny/llama3"); }  // bf16, two shards

std::vector<TestTensor> compress(const std::string& base, const Tensor& w, const char* dtype) {
  const int64_t rows = w.size(0);
  const int64_t columns = w.size(1);
  const int64_t mask_bytes = (columns + 7) / 8;
  std::vector<uint8_t> mask(static_cast<size_t>(rows * mask_bytes));
  std::vector<uint16_t> values;
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row < rows; ++row) {
    offsets.push_back(std::ssize(values));
    for (int64_t column = 0; column < columns; ++column) {
      const uint16_t value = static_cast<const uint16_t*>(w.raw())[row * columns + column];
      if ((value & 0x7fffu) != 0) {
        values.push_back(value);
        mask[static_cast<size_t>(row * mask_bytes + column / 8)] |=
            static_cast<uint8_t>(1u << column % 8);
      }
    }
  }
  return {{base + ".shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, columns})},
          {base + ".bitmask", "U8", {rows, mask_bytes}, bytes_of(mask)},
          {base + ".compressed", dtype, {std::ssize(values)}, bytes_of(values)},
          {base + ".row_offsets", "I64", {rows}, bytes_of(offsets)}};
}

// The same model with bitmasks, and config.json as that library leaves it.
void write_compressed(const fs::path& from, const TempDir& to) {
  const Model model(from);
  const char* const dtype =
      model.stored(model.layers.front()).dtype == DType::bf16 ? "BF16" : "F16";
  std::vector<TestTensor> tensors;
  for (const LinearLayer& layer : model.layers) {
    for (TestTensor& tensor : compress(layer.module + ".weight", model.dense(layer).view, dtype)) {
      tensors.push_back(std::move(tensor));
    }
  }
  for (const std::string& name : model.other_tensors()) {
    const StoredTensor& tensor = *model.checkpoint.find(name);
    tensors.push_back(
        {name, tensor.dtype, tensor.shape,
         std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())});
  }
  // By falling alignment, so that nothing needs padding.
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return *stored_item_bits(a.dtype) > *stored_item_bits(b.dtype);
  });
  to.write("model.safetensors", testing::write_safetensors(tensors));
  auto config = nlohmann::json::parse(contents(from / "config.json"));
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"sparsity_config", {{"format", "sparse-bitmask"}, {"global_sparsity", 60.0}}}};
  to.write("config.json", config.dump());
}

TEST(ConvertBitmasks, BecomeEveryFormat) {
  const TempDir directory;
  const fs::path sparse = directory.path() / "sparse";
  convert(llama3(), sparse, plan("magnitude", 0.6, "dense"));
  const TempDir compressed;
  write_compressed(sparse, compressed);
  const Model before(compressed.path());
  ASSERT_EQ(before.stored(before.layers.front()).form, WeightStore::Form::bitmask);
  expect_same_weights(Model(sparse), before);
  Engine original = load(sparse, {}, false);
  const std::vector<int32_t> expected = greedy(original);
  for (const std::string format : {"dense", "tiled_csl", "tca_bme", "auto"}) {
    SCOPED_TRACE(format);
    const fs::path output = directory.path() / format;
    convert(compressed.path(), output, plan("none", 0, format), verified);
    const Model after(output);
    expect_same_weights(before, after);
    expect_same_others(before, after);
    auto config = nlohmann::json::parse(contents(output / "config.json"));
    std::set<std::string> formats;
    for (const LinearLayer& layer : after.layers) {
      formats.insert(after.stored(layer).format);
    }
    formats.erase("dense");
    EXPECT_EQ(testing::formats_of_config(output), formats);
    EXPECT_EQ(config.erase("quantization_config"), format == "dense" ? 0u : 1u);
    EXPECT_EQ(config, nlohmann::json::parse(contents(llama3() / "config.json")));
    Engine engine = load(output, {}, false);
    EXPECT_EQ(greedy(engine), expected);
    if (format == "dense") {
      expect_same_bytes(sparse, output);
    }
  }
}

TEST(ConvertBitmasks, ArePrunedToo) {
  const TempDir directory;
  const TempDir compressed;
  write_compressed(llama3(), compressed);
  convert(compressed.path(), directory.path() / "a", plan("magnitude", 0.7, "tca_bme"));
  convert(llama3(), directory.path() / "b", plan("magnitude", 0.7, "tca_bme"));
  expect_same_bytes(directory.path() / "b", directory.path() / "a");
}

TEST(ConvertBitmasks, AreConvertedToAnotherDTypeToo) {
  const TempDir directory;
  const TempDir compressed;
  write_compressed(llama3(), compressed);
  const auto to_f16 = [](ConvertOptions& options) {
    options.dtype = DType::f16;
    options.verify = true;
  };
  convert(compressed.path(), directory.path() / "a", plan("magnitude", 0.7, "auto"), to_f16);
  convert(llama3(), directory.path() / "b", plan("magnitude", 0.7, "auto"), to_f16);
  expect_same_bytes(directory.path() / "b", directory.path() / "a");
  const auto config = nlohmann::json::parse(contents(directory.path() / "a" / "config.json"));
  EXPECT_EQ(config.at("quantization_config").at("library"), "sparsellm");
  EXPECT_EQ(config.at("torch_dtype"), "float16");
}

}  // namespace
}  // namespace sparsellm
