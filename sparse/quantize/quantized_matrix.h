#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"

namespace sparsellm {

// How a weight's values are stored where they are narrower than those it is multiplied with.
enum class ValueType : uint8_t {
  i8,  // -128..127, two's complement
  f8,  // e4m3: a sign, 4 bits of exponent, 3 of mantissa; no infinities (Micikevicius et al. 2022)
  i4,  // -8..7
};
std::string_view name_of(ValueType type);
// "i8", "f8" or "i4". Throws Error for anything else.
ValueType parse_value_type(std::string_view name);
constexpr int32_t bits_of(ValueType type) { return type == ValueType::i4 ? 4 : 8; }

// Columns that may share a scale of i4.
inline constexpr int64_t kValueGroups[] = {32, 64, 128};
inline constexpr int64_t kDefaultValueGroup = 128;

// A matrix of narrow values in host memory: element (r, c) is codes[r, c] as `type` has it times
// scales[r, c / group].
struct QuantizedMatrix {
  ValueType type = ValueType::i8;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t group = 0;  // columns that share a scale: 32, 64 or 128 of i4; all of them of i8 and f8
  std::vector<int8_t> codes = {};  // [rows, columns]; of f8 the bits
  std::vector<float> scales = {};  // [rows, groups()]; those of i4 are f16 values

  int64_t groups() const {
    return group == columns ? 1 : columns / group + (columns % group != 0 ? 1 : 0);
  }
};

// Throws Error of one line unless the sizes fit each other, the group is one of its type, scales
// are finite and positive, those of i4 are f16 values, and codes are of the type: those of i4 are
// in -8..7, those of f8 no NaN.
void require_valid(const QuantizedMatrix& q);

// The value of a code without its scale; of f8 NaN for the two codes that stand for it.
float value_of(ValueType type, int8_t code);

// [rows, columns] of f16, bf16 or f32 in host memory. Each element is the exact product of its
// code's value and its scale, rounded once, to nearest even; where that is too large for the dtype,
// infinity. Throws Error for a matrix that is not valid.
OwnedTensor dequantize(const QuantizedMatrix& q, DType dtype, ThreadPool& threads);

}  // namespace sparsellm
