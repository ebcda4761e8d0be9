#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/tensor.h"

namespace sparsellm::testing {

// Where the nonzeros of a weight are, and what they are.
enum class Pattern : uint8_t {
  random,
  one_row,
  one_column,
  one_tile,        // of 16 x 16
  negative_zeros,  // half of the zeros are -0
  subnormals,      // all nonzeros
  infinities,      // about one of the nonzeros of each row
};
inline constexpr Pattern kPatterns[] = {
    Pattern::random,         Pattern::one_row,    Pattern::one_column, Pattern::one_tile,
    Pattern::negative_zeros, Pattern::subnormals, Pattern::infinities};
std::string_view name_of(Pattern pattern);

// A matrix of f16 or bf16; each element that the pattern allows is a nonzero with the probability
// `density`. Magnitudes are in [1/32, 1) unless the pattern says otherwise. The same f16 and bf16
// weights have their nonzeros in the same places.
struct WeightSpec {
  DType dtype = DType::f16;
  int64_t rows = 0;
  int64_t columns = 0;
  double density = 0.0;
  Pattern pattern = Pattern::random;
};
OwnedTensor make_weight(const WeightSpec& spec, uint64_t seed);

// A contiguous copy, of some columns for example.
OwnedTensor copy_of(const Tensor& w);

// Puts a 0 for every -0 of a contiguous matrix.
void clear_negative_zeros(const Tensor& w);

// Elements that are neither 0 nor -0.
int64_t nonzeros_of(const Tensor& w);

}  // namespace sparsellm::testing
