#pragma once

#include <cstdint>
#include <filesystem>

namespace sparsellm::testing {

// A Llama checkpoint of any size with random f16 weights and without a tokenizer. Its largest
// tensors are gate_proj, up_proj and down_proj.
struct SyntheticModel {
  int64_t hidden = 64;
  int64_t intermediate = 128;
  int64_t blocks = 2;
  int64_t head_dim = 64;  // of two heads, with one of keys and values
  double density = 1.0;   // of all matrices

  int64_t largest_tensor_bytes() const { return 2 * hidden * intermediate; }
};

// Makes the directory, with config.json and model.safetensors. The same bytes with every compiler.
void write_synthetic_model(const std::filesystem::path& directory, const SyntheticModel& model);

}  // namespace sparsellm::testing
