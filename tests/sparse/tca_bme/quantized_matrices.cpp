#include "tests/sparse/tca_bme/quantized_matrices.h"

#include <fmt/format.h>

#include <cmath>

#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::testing {
namespace {

bool is_negative_zero(const QuantizedMatrix& q, int8_t code) {
  return q.type == ValueType::f8 && code == -128;
}

int8_t random_code(ValueType type, Random& random) {
  for (;;) {
    const auto code = type == ValueType::i4 ? static_cast<int8_t>(random.below(16) - 8)
                                            : static_cast<int8_t>(random.below(256) - 128);
    const bool special = type == ValueType::f8 && ((code & 0x7f) == 0 || (code & 0x7f) == 0x7f);
    if (code != 0 && !special) {
      return code;
    }
  }
}

}  // namespace

const std::vector<QuantizedShape>& quantized_kinds() {
  static const std::vector<QuantizedShape> kinds = {
      {.type = ValueType::i8},
      {.type = ValueType::f8},
      {.type = ValueType::i4, .group = 32},
      {.type = ValueType::i4, .group = 64},
      {.type = ValueType::i4, .group = 128},
      {.format = "dense_i8", .type = ValueType::i8},
      {.format = "dense_i4", .type = ValueType::i4, .group = 32},
      {.format = "dense_i4", .type = ValueType::i4, .group = 64},
      {.format = "dense_i4", .type = ValueType::i4, .group = 128},
  };
  return kinds;
}

EncodedWeight encode_as(const QuantizedShape& kind, const QuantizedMatrix& q, DType dtype,
                        ThreadPool& threads) {
  return tca_bme::encode_quantized(q, kind.format, dtype, threads);
}

QuantizedMatrix random_quantized(const QuantizedShape& shape, uint64_t seed) {
  Random random(seed);
  QuantizedMatrix q{.type = shape.type,
                    .rows = shape.rows,
                    .columns = shape.columns,
                    .group = shape.type == ValueType::i4 ? shape.group : shape.columns,
                    .codes = {},
                    .scales = {}};
  q.codes.resize(static_cast<size_t>(q.rows * q.columns));
  for (int8_t& code : q.codes) {
    if (random.uniform(0.0, 1.0) < shape.density) {
      code = random_code(shape.type, random);
    } else if (shape.type == ValueType::f8 && random.below(8) == 0) {
      code = -128;
    }
  }
  q.scales.resize(static_cast<size_t>(q.rows * q.groups()));
  for (float& scale : q.scales) {
    scale = static_cast<float>(std::exp2(random.uniform(-12.0, 0.0)));
    scale = shape.type == ValueType::i4 ? to_float(to_half(scale)) : scale;
  }
  return q;
}

QuantizedMatrix naive_slice(const QuantizedMatrix& q, const Slice& slice) {
  QuantizedMatrix part{.type = q.type,
                       .rows = slice.rows.count,
                       .columns = slice.columns.count,
                       .group = q.type == ValueType::i4 ? q.group : slice.columns.count,
                       .codes = {},
                       .scales = {}};
  while (q.type == ValueType::i4 && part.columns > 0 && slice.columns.begin % part.group != 0) {
    part.group /= 2;
  }
  for (int64_t row = slice.rows.begin; row < slice.rows.begin + part.rows; ++row) {
    for (int64_t column = slice.columns.begin; column < slice.columns.begin + part.columns;
         ++column) {
      const int8_t code = q.codes[static_cast<size_t>(row * q.columns + column)];
      part.codes.push_back(is_negative_zero(q, code) ? int8_t{0} : code);
    }
    for (int64_t group = 0; group < part.groups(); ++group) {
      const int64_t column = slice.columns.begin + group * part.group;
      const int64_t of_q = q.type == ValueType::i4 ? column / q.group : 0;
      part.scales.push_back(q.scales[static_cast<size_t>(row * q.groups() + of_q)]);
    }
  }
  return part;
}

::testing::AssertionResult same_quantized(const QuantizedMatrix& got,
                                          const QuantizedMatrix& expected) {
  const auto header = [](const QuantizedMatrix& q) {
    return fmt::format("{} [{}, {}] in groups of {}", name_of(q.type), q.rows, q.columns, q.group);
  };
  if (header(got) != header(expected)) {
    return ::testing::AssertionFailure() << "got " << header(got) << ", not " << header(expected);
  }
  if (got.codes != expected.codes) {
    return ::testing::AssertionFailure() << "codes differ";
  }
  return got.scales == expected.scales ? ::testing::AssertionSuccess()
                                       : ::testing::AssertionFailure() << "scales differ";
}

QuantizedMatrix without_negative_zeros(const QuantizedMatrix& q) {
  return naive_slice(q, {.rows = {0, q.rows}, .columns = {0, q.columns}});
}

int64_t nonzeros_of(const QuantizedMatrix& q) {
  int64_t nonzeros = 0;
  for (const int8_t code : q.codes) {
    nonzeros += code != 0 && !is_negative_zero(q, code) ? 1 : 0;
  }
  return nonzeros;
}

}  // namespace sparsellm::testing
