#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "sparse/quantize/quantized_matrix.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/gpu_weight_test.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"

namespace sparsellm::testing {

struct QuantizedKind {
  ValueType type;
  int64_t group = 0;  // of i4
  std::string_view format = "tca_bme";
};
class GpuQuantized : public GpuWeightTest {
 protected:
  // Scales are powers of two: the values are exact in f16 and bf16.
  static QuantizedMatrix matrix_of(const QuantizedKind& kind, const Shape& shape, double density,
                                   uint64_t seed) {
    QuantizedMatrix q = random_quantized({.type = kind.type,
                                          .group = kind.group,
                                          .rows = shape.rows,
                                          .columns = shape.columns,
                                          .density = density},
                                         seed);
    without_negative_zeros(q);
    for (float& scale : q.scales) {
      scale = std::exp2(std::floor(std::log2(scale)));
    }
    return q;
  }
  // They have no bit, and are zeros.
  static void without_negative_zeros(QuantizedMatrix& q) {
    if (q.type == ValueType::f8) {
      std::ranges::replace(q.codes, int8_t{-128}, int8_t{0});
    }
  }
  OwnedTensor dense_of(const QuantizedMatrix& q) { return dequantize(q, GetParam(), cpu.threads); }

  EncodedWeight encode(const QuantizedKind& kind, const QuantizedMatrix& q) {
    return tca_bme::encode_quantized(q, kind.format, GetParam(), cpu.threads);
  }
  std::unique_ptr<WeightMatrix> load_quantized(const QuantizedKind& kind,
                                               const QuantizedMatrix& q) {
    EncodedWeight e = encode(kind, q);
    std::unique_ptr<WeightMatrix> loaded = load(weight_format(kind.format), {&e, 1});
    EXPECT_EQ(loaded->format(), kind.format);
    return loaded;
  }
  static const tca_bme::CudaRecordWeight& as_records(const WeightMatrix& weight) {
    return dynamic_cast<const tca_bme::CudaRecordWeight&>(weight);
  }

  // What products in integers may be off by besides: x is rounded to 16 bits of the largest of a
  // block, which is no larger than the largest of those columns.
  // `sums` of the magnitudes of a row's weights.
  Expected with_rounded_x(Expected expected, const Tensor& x, const std::vector<double>& sums,
                          int64_t first_column) {
    const std::vector<double> of_x = values_of(cpu_twin(x).view());
    const int64_t columns = x.size(1);
    for (int64_t token = 0; token < x.size(0); ++token) {
      double largest = 0.0;
      for (int64_t k = first_column; k < columns; ++k) {
        largest = std::max(largest, std::abs(of_x[static_cast<size_t>(token * columns + k)]));
      }
      for (size_t row = 0; row < sums.size(); ++row) {
        constexpr double kSteps = 2.0 * 32512.0;
        expected.magnitudes[static_cast<size_t>(token) * sums.size() + row] +=
            sums[row] * largest / kSteps / (kTolerance * std::numeric_limits<float>::epsilon());
      }
    }
    return expected;
  }
  static std::vector<double> sums_of(const Tensor& w) {
    std::vector<double> sums(static_cast<size_t>(w.size(0)));
    const std::vector<double> all = values_of(w);
    for (size_t i = 0; i < all.size(); ++i) {
      sums[i / static_cast<size_t>(w.size(1))] += std::abs(all[i]);
    }
    return sums;
  }
};

}  // namespace sparsellm::testing
