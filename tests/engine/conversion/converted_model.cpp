#include "tests/engine/conversion/converted_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "models/storage/model_manifest.h"
#include "models/storage/model_metadata.h"
#include "tools/eval/compare.h"

namespace sparsellm::testing {
namespace {

namespace fs = std::filesystem;

nlohmann::json config_without_formats(const fs::path& directory) {
  auto config = nlohmann::json::parse(contents(directory / "config.json"));
  config.erase("quantization_config");
  return config;
}

bool is_zero(uint16_t f16_bits) { return (f16_bits & 0x7fffu) == 0; }  // or a negative one

}  // namespace

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

SparsityPlan plan(std::string_view method, double sparsity, const std::string& format,
                  PruneScope scope) {
  return SparsityPlan::uniform({.method = parse_prune_method(method),
                                .scope = scope,
                                .sparsity = sparsity,
                                .seed = 3,
                                .norms = {}},
                               format);
}

Conversion convert(const fs::path& input, const fs::path& output, SparsityPlan how,
                   const std::function<void(ConvertOptions&)>& change) {
  ConvertOptions options{.input = input, .output = output, .plan = std::move(how), .threads = 2};
  change(options);
  return convert_model(options);
}

void verified(ConvertOptions& options) { options.verify = true; }

Model::Model(const fs::path& directory)
    : config(read_model_config(directory)),
      layers(linear_layers(config)),
      checkpoint(directory),
      store(checkpoint),
      threads_(2) {}

WeightStore::Stored Model::stored(const LinearLayer& layer) const {
  return store.get(layer.module + ".weight");
}

OwnedTensor Model::dense(const LinearLayer& layer) const {
  return store.dense(layer.module + ".weight", threads_);
}

std::vector<std::string> Model::other_tensors() const {
  std::set<std::string> taken;
  for (const LinearLayer& layer : layers) {
    for (const std::string& name : stored(layer).tensors) {
      taken.insert(name);
    }
  }
  std::vector<std::string> names;
  for (const std::string& name : checkpoint.names()) {
    if (!taken.contains(name) && !name.starts_with(kPaddingPrefix)) {
      names.push_back(name);
    }
  }
  return names;
}

int64_t zeros(const Tensor& w, int64_t row, Range columns) {
  int64_t count = 0;
  visit_float(w.dtype(), [&]<class T>(T) {
    const T* const values = w.row<T>(row) + columns.begin;
    count = std::count_if(values, values + columns.count, [](T x) { return to_float(x) == 0.0f; });
  });
  return count;
}

int64_t zeros(const Tensor& w, int64_t row) { return zeros(w, row, {0, w.size(1)}); }

int64_t zeros(const Tensor& w) {
  int64_t count = 0;
  for (int64_t row = 0; row < w.size(0); ++row) {
    count += zeros(w, row);
  }
  return count;
}

int64_t expect_pruned_values(const Tensor& before, const Tensor& now) {
  int64_t changed = 0;
  int64_t wrong = 0;
  visit_float(before.dtype(), [&]<class T>(T) {
    for (int64_t row = 0; row < before.size(0); ++row) {
      for (int64_t column = 0; column < before.size(1); ++column) {
        const T a = before.row<T>(row)[column];
        const T b = now.row<T>(row)[column];
        if (to_float(b) == 0.0f) {
          changed += to_float(a) != 0.0f ? 1 : 0;
        } else {
          // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits, for the sake of NaN
          wrong += std::memcmp(&a, &b, sizeof(T)) != 0 ? 1 : 0;
        }
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  return changed;
}

void expect_same_tensor(const StoredTensor& a, const StoredTensor* b, const std::string& name) {
  ASSERT_NE(b, nullptr) << name;
  EXPECT_EQ(a.dtype, b->dtype) << name;
  EXPECT_EQ(a.shape, b->shape) << name;
  EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b->bytes.begin(), b->bytes.end())) << name;
}

void expect_same_others(const Model& a, const Model& b) {
  const std::vector<std::string> names = a.other_tensors();
  EXPECT_GT(names.size(), 2u);
  EXPECT_EQ(names, b.other_tensors());
  for (const std::string& name : names) {
    expect_same_tensor(*a.checkpoint.find(name), b.checkpoint.find(name), name);
  }
}

void expect_same_weights(const Model& a, const Model& b) {
  for (const LinearLayer& layer : a.layers) {
    SCOPED_TRACE(layer.module);
    const OwnedTensor x = a.dense(layer);
    const OwnedTensor y = b.dense(layer);
    ASSERT_EQ(x.view.dtype(), y.view.dtype());
    ASSERT_EQ(x.view.bytes(), y.view.bytes());
    EXPECT_EQ(expect_pruned_values(x.view, y.view), 0);
    EXPECT_EQ(zeros(x.view), zeros(y.view));
  }
}

void expect_same_bytes(const fs::path& a, const fs::path& b) {
  const Checkpoint before(a);
  const Checkpoint after(b);
  for (const std::string& name : before.names()) {
    expect_same_tensor(*before.find(name), after.find(name), name);
  }
  for (const std::string& name : after.names()) {
    EXPECT_TRUE(before.find(name) != nullptr || name.starts_with(kPaddingPrefix)) << name;
  }
}

void expect_same_f16_bytes(const fs::path& a, const fs::path& b) {
  const Checkpoint before(a);
  const Checkpoint after(b);
  for (const std::string& name : before.names()) {
    const StoredTensor* const x = before.find(name);
    const StoredTensor* const y = after.find(name);
    ASSERT_NE(y, nullptr) << name;
    ASSERT_EQ(x->bytes.size(), y->bytes.size()) << name;
    int64_t different = 0;
    for (size_t i = 0; i < x->bytes.size(); i += 2) {
      uint16_t u = 0;
      uint16_t v = 0;
      std::memcpy(&u, x->bytes.data() + i, 2);
      std::memcpy(&v, y->bytes.data() + i, 2);
      different += u == v || (is_zero(u) && is_zero(v)) ? 0 : 1;
    }
    EXPECT_EQ(different, 0) << name;
  }
}

std::set<std::string> formats_of_config(const fs::path& directory) {
  const auto config = nlohmann::json::parse(contents(directory / "config.json"));
  if (!config.contains("quantization_config")) {
    return {};
  }
  const nlohmann::json& form = config["quantization_config"];
  EXPECT_EQ(form.size(), form.contains("values") ? 4u : 3u) << form;
  EXPECT_EQ(form["library"], "sparsellm");
  EXPECT_EQ(form["version"], 1);
  return form["formats"];
}

void expect_same_files(const fs::path& input, const fs::path& output) {
  const std::set<std::string> names = entries(output);
  EXPECT_TRUE(names.contains("config.json"));
  EXPECT_FALSE(names.contains("README.md"));  // none was given
  EXPECT_EQ(config_without_formats(output), config_without_formats(input));
  for (const std::string& name : names) {
    if (name.find("safetensors") == std::string::npos && name != kManifestName &&
        name != "config.json") {
      EXPECT_EQ(contents(output / name), contents(input / name)) << name;
    }
  }
  for (const std::string& name : entries(input)) {
    const bool is_metadata = name == "reference.json";
    EXPECT_TRUE(names.contains(name) || is_metadata || name.find("model") == 0 ||
                name.find("safetensors") != std::string::npos)
        << name;
    if (name.starts_with("tokenizer")) {
      EXPECT_TRUE(names.contains(name)) << name;
    }
  }
}

Engine load(const fs::path& directory, const std::string& format, bool with_tokenizer) {
  EngineOptions options;
  options.context_size = kContext;
  const ComparisonBatch batch = comparison_batch(4096, kContext);
  options.step_tokens = batch.step_tokens;
  options.max_requests = batch.windows;
  options.weight_format = format;
  options.with_tokenizer = with_tokenizer;
  options.verify = entries(directory).contains("model.safetensors") &&
                   SafetensorsFile(directory / "model.safetensors")
                       .metadata()
                       .contains(std::string(kVersionKey));
  return Engine::load(directory, options);
}

std::vector<int32_t> greedy(Engine& engine) {
  Request request;
  request.prompt = {3, 7, 5, 11};
  request.sampling.temperature = 0.0f;
  request.max_tokens = 12;
  request.ignore_eos = true;
  const std::vector<Completion> done = engine.generate({request});
  EXPECT_EQ(done.front().error, "");
  return done.front().tokens;
}

}  // namespace sparsellm::testing
