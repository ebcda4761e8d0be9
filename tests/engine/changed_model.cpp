#include "tests/engine/changed_model.h"

#include <gtest/gtest.h>

#include <fstream>

#include "models/storage/safetensors.h"

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

}  // namespace sparsellm::testing
