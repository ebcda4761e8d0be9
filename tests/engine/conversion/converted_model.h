#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "models/config.h"
#include "models/linear_layers.h"
#include "models/weights/weight_store.h"

// Conversions as tests make them, and what is to be true of a model before and after one.
namespace sparsellm::testing {

std::string contents(const std::filesystem::path& file);
std::set<std::string> entries(const std::filesystem::path& directory);

// The same for all layers; the seed is 3.
SparsityPlan plan(std::string_view method, double sparsity, const std::string& format,
                  PruneScope scope = PruneScope::row);

// With two threads.
Conversion convert(
    const std::filesystem::path& input, const std::filesystem::path& output, SparsityPlan how,
    const std::function<void(ConvertOptions&)>& change = [](ConvertOptions&) {});
void verified(ConvertOptions& options);

// A model's tensors.
class Model {
 public:
  explicit Model(const std::filesystem::path& directory);

  WeightStore::Stored stored(const LinearLayer& layer) const;
  OwnedTensor dense(const LinearLayer& layer) const;
  // Names of what belongs to no linear layer, without padding.
  std::vector<std::string> other_tensors() const;

  const ModelConfig config;
  const std::vector<LinearLayer> layers;
  const Checkpoint checkpoint;
  const WeightStore store;

 private:
  mutable ThreadPool threads_;
};

// Zeros and negative zeros of columns of a row, of a row, of a matrix.
int64_t zeros(const Tensor& w, int64_t row, Range columns);
int64_t zeros(const Tensor& w, int64_t row);
int64_t zeros(const Tensor& w);

// Every element of `now` is that of `before`, or zero; returns how many became zero.
int64_t expect_pruned_values(const Tensor& before, const Tensor& now);
// All linear layers, in whatever form they are stored, except for the signs of zeros.
void expect_same_weights(const Model& a, const Model& b);
// Embeddings, norms, biases and the head, byte by byte, and nothing more.
void expect_same_others(const Model& a, const Model& b);
void expect_same_tensor(const StoredTensor& a, const StoredTensor* b, const std::string& name);

// The same tensors with the same bytes, except for padding.
void expect_same_bytes(const std::filesystem::path& a, const std::filesystem::path& b);
// Those of a, which are f16 or bf16, are in b; except for the signs of zeros, which sparse formats
// do not keep.
void expect_same_f16_bytes(const std::filesystem::path& a, const std::filesystem::path& b);
// The sparse formats that config.json names; none if it names none.
std::set<std::string> formats_of_config(const std::filesystem::path& directory);
// Everything but the tensors, the formats, and what no program reads.
void expect_same_files(const std::filesystem::path& input, const std::filesystem::path& output);

// An engine with a short context, whose checksums are verified if it has some.
inline constexpr int64_t kContext = 128;
Engine load(const std::filesystem::path& directory, const std::string& format = {},
            bool with_tokenizer = true);
// A continuation.
std::vector<int32_t> greedy(Engine& engine);

}  // namespace sparsellm::testing
