#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/dtype.h"
#include "models/storage/safetensors.h"
#include "tests/engine/changed_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

// A KV cache of f16 on the CPU, and values that it cannot hold.
namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

constexpr int64_t kHidden = 24;
constexpr int32_t kLarge = 357;  // the token whose value is beyond f16, and no other one is

// The first row of the first layer's v_proj points where the embedding of kLarge does. Its norm
// makes some 19 of that, and at most 14 of any other token of the test; the limit of f16 is
// between.
fs::path model_with_large_value(const TempDir& folder) {
  const fs::path source = testing::data("tiny/llama_gelu_tanh");
  const SafetensorsFile file(source / "model.safetensors");
  const auto* const embedding = reinterpret_cast<const uint16_t*>(
      file.tensors().at("model.embed_tokens.weight").bytes.data() + kLarge * kHidden * 2);
  const uint16_t large = to_half(4400.0f).bits;
  std::array<uint16_t, kHidden> row{};
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<uint16_t>(large | (embedding[i] & 0x8000));
  }
  return testing::changed_model(folder, source, "model.layers.0.self_attn.v_proj.weight", 0, row);
}

Request request_of(std::vector<int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 4;
  request.ignore_eos = true;
  request.sampling.temperature = 0.0f;
  return request;
}

std::vector<Completion> generate(const fs::path& model, DType kv_dtype) {
  EngineOptions options;
  options.with_tokenizer = false;
  options.kv_dtype = kv_dtype;
  return Engine::load(model, options)
      .generate(
          {request_of({1, 20, 30, 40}), request_of({1, 20, kLarge, 40}), request_of({1, 50, 60})});
}

TEST(KvOverflow, EndsItsOwnRequestAlone) {
  const TempDir folder;
  const fs::path model = model_with_large_value(folder);
  const std::vector<Completion> wide = generate(model, DType::f32);
  const std::vector<Completion> narrow = generate(model, DType::f16);
  ASSERT_EQ(wide.size(), 3u);
  ASSERT_EQ(narrow.size(), 3u);
  for (const size_t i : {0, 1, 2}) {
    EXPECT_EQ(wide[i].finish, FinishReason::length) << wide[i].error;
    EXPECT_EQ(wide[i].tokens.size(), 4u);
  }
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(narrow[i].finish, FinishReason::length) << narrow[i].error;
    EXPECT_EQ(narrow[i].tokens, wide[i].tokens);
  }
  EXPECT_EQ(narrow[1].finish, FinishReason::error);
  EXPECT_TRUE(narrow[1].tokens.empty());
  EXPECT_NE(narrow[1].error.find("--kv-dtype f32"), std::string::npos) << narrow[1].error;
}

}  // namespace
}  // namespace sparsellm
