#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparse/quantize/quantized_matrix.h"
#include "tests/models/storage/write_safetensors.h"

namespace sparsellm::testing {

// How compressed-tensors stores a quantised weight.
struct QuantizedStorage {
  enum class Codes : uint8_t {
    plain,       // of 4 bits packed
    bitmask,     // "sparse-bitmask"
    bitmask_24,  // "sparse-24-bitmask", two values of every four
  };
  enum class Scales : uint8_t { matrix, rows, columns_of_one };  // [1], [rows], [rows, groups]
  Codes codes = Codes::plain;
  Scales scales = Scales::columns_of_one;
  std::string scale_dtype = "F32";  // or "F16", "BF16", which has to hold the scales
};

// Its tensors, codes first and scales last.
std::vector<TestTensor> quantized_tensors(const std::string& module, const QuantizedMatrix& q,
                                          const QuantizedStorage& storage = {});

// The scales as a float dtype of safetensors has them, rounded to nearest.
std::string scale_bytes(const std::vector<float>& scales, const std::string& dtype);

// Numbers that bf16 holds, near these.
void round_scales_to_bf16(QuantizedMatrix& q);

// Codes of all values of the type, so many of them zero; scales that are numbers of both f16 and
// bf16.
QuantizedMatrix random_codes(ValueType type, int64_t rows, int64_t columns, int64_t group,
                             double density, uint64_t seed);

}  // namespace sparsellm::testing
