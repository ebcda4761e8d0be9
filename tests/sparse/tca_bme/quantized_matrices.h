#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "sparse/encoded_weight.h"
#include "sparse/quantize/quantized_matrix.h"
#include "sparse/weight_matrix.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

struct QuantizedShape {
  std::string_view format = "tca_bme";  // that it is stored in
  ValueType type = ValueType::i8;
  int64_t group = 0;  // of i4
  int64_t rows = 0;
  int64_t columns = 0;
  double density = 0.5;

  bool dense() const { return format != "tca_bme"; }
};

// All types and groups in all formats that hold them, of no size.
const std::vector<QuantizedShape>& quantized_kinds();

EncodedWeight encode_as(const QuantizedShape& kind, const QuantizedMatrix& q, DType dtype,
                        ThreadPool& threads);

// Any codes but NaN at random places and any scales; in f8 some of the others are negative zeros.
QuantizedMatrix random_quantized(const QuantizedShape& shape, uint64_t seed);

// Element by element, in groups of half as many columns where they would not begin with one.
// Negative zeros become zeros.
QuantizedMatrix naive_slice(const QuantizedMatrix& q, const Slice& slice);

::testing::AssertionResult same_quantized(const QuantizedMatrix& got,
                                          const QuantizedMatrix& expected);
QuantizedMatrix without_negative_zeros(const QuantizedMatrix& q);

int64_t nonzeros_of(const QuantizedMatrix& q);

}  // namespace sparsellm::testing
