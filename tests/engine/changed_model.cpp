#include "tests/engine/changed_model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/storage/safetensors.h"
#include "tests/models/storage/write_safetensors.h"

namespace sparsellm::testing {

namespace fs = std::filesystem;

fs::path changed_model(const TempDir& folder, const fs::path& source, std::string_view tensor,
                       int64_t first, std::span<const uint16_t> bits) {
  fs::path model = folder.path() / "model";
  fs::copy(source, model);
  const SafetensorsFile file(source / "model.safetensors");
  const StoredTensor& stored = file.tensors().find(tensor)->second;
  EXPECT_EQ(stored.dtype, "F16");
  const auto begin = stored.bytes.data() - file.file().bytes().data();
  std::fstream weights(model / "model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(begin + first * std::streamoff{sizeof(uint16_t)});
  weights.write(reinterpret_cast<const char*>(bits.data()),
                static_cast<std::streamsize>(bits.size_bytes()));
  EXPECT_TRUE(weights.flush().good());
  return model;
}

fs::path model_with_tensors(const TempDir& folder, const fs::path& source,
                            std::span<const std::string> names, int64_t rows, int64_t columns) {
  fs::path model = folder.path() / "model";
  fs::copy(source, model);
  const SafetensorsFile weights(source / "model.safetensors");
  nlohmann::json files;
  for (const auto& [name, tensor] : weights.tensors()) {
    files[name] = "weights.safetensors";
  }
  // Under its own name the index would not be read.
  fs::rename(model / "model.safetensors", model / "weights.safetensors");
  std::vector<TestTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({.name = name,
                       .dtype = "F16",
                       .shape = {rows, columns},
                       .bytes = std::string(static_cast<size_t>(rows * columns * 2), '\0')});
    files[name] = "more.safetensors";
  }
  std::ofstream(model / "more.safetensors", std::ios::binary) << write_safetensors(tensors);
  std::ofstream(model / "model.safetensors.index.json")
      << nlohmann::json{{"weight_map", files}}.dump();
  return model;
}

}  // namespace sparsellm::testing
