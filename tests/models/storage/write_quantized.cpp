#include "tests/models/storage/write_quantized.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/base/dtype.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {
namespace {

TestTensor packed(const std::string& module, const QuantizedMatrix& q) {
  const int64_t words = (q.columns + 7) / 8;
  std::vector<uint32_t> values(static_cast<size_t>(q.rows * words));
  for (int64_t row = 0; row < q.rows; ++row) {
    for (int64_t column = 0; column < q.columns; ++column) {
      const int code = q.codes[static_cast<size_t>(row * q.columns + column)];
      values[static_cast<size_t>(row * words + column / 8)] |= static_cast<uint32_t>(code + 8)
                                                               << column % 8 * 4;
    }
  }
  return {module + ".weight_packed", "I32", {q.rows, words}, bytes_of(values)};
}

// Whether the place is one of two of every four, those of nonzeros first.
bool is_kept_24(const QuantizedMatrix& q, int64_t row, int64_t column) {
  const int8_t* const four = q.codes.data() + row * q.columns + column / 4 * 4;
  int64_t before = 0;  // that are taken earlier
  for (int64_t i = 0; i < 4; ++i) {
    const bool is_first = (four[i] != 0) != (four[column % 4] != 0) ? four[i] != 0 : i < column % 4;
    before += i != column % 4 && is_first ? 1 : 0;
  }
  return before < 2;
}

void add_bitmask(const std::string& module, const QuantizedMatrix& q, bool two_of_four,
                 const char* dtype, std::vector<TestTensor>& tensors) {
  const int64_t mask_bytes = (q.columns + 7) / 8;
  std::vector<uint8_t> mask(static_cast<size_t>(q.rows * mask_bytes));
  std::vector<int8_t> values;
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row < q.rows; ++row) {
    offsets.push_back(std::ssize(values));
    for (int64_t column = 0; column < q.columns; ++column) {
      const int8_t code = q.codes[static_cast<size_t>(row * q.columns + column)];
      if (two_of_four ? is_kept_24(q, row, column) : code != 0) {
        values.push_back(code);
        mask[static_cast<size_t>(row * mask_bytes + column / 8)] |=
            static_cast<uint8_t>(1u << column % 8);
      }
    }
  }
  const std::string base = two_of_four ? module : module + ".weight";
  const std::vector<int64_t> shape = two_of_four
                                         ? std::vector<int64_t>{q.rows, std::ssize(values) / q.rows}
                                         : std::vector<int64_t>{std::ssize(values)};
  tensors.push_back({base + ".compressed", dtype, shape, bytes_of(values)});
  tensors.push_back({base + ".bitmask", "U8", {q.rows, mask_bytes}, bytes_of(mask)});
  tensors.push_back({base + ".shape", "I64",
                     two_of_four ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{2},
                     bytes_of(std::vector<int64_t>{q.rows, q.columns})});
  if (!two_of_four) {
    tensors.push_back({base + ".row_offsets", "I64", {q.rows}, bytes_of(offsets)});
  }
}

}  // namespace

std::string scale_bytes(const std::vector<float>& scales, const std::string& dtype) {
  if (dtype == "F32") {
    return bytes_of(scales);
  }
  std::vector<uint16_t> bits;
  for (const float scale : scales) {
    bits.push_back(dtype == "F16" ? to_half(scale).bits : to_bfloat16(scale).bits);
  }
  return bytes_of(bits);
}

std::vector<TestTensor> quantized_tensors(const std::string& module, const QuantizedMatrix& q,
                                          const QuantizedStorage& storage) {
  using Storage = QuantizedStorage;
  std::vector<TestTensor> tensors;
  const char* const dtype = q.type == ValueType::i8 ? "I8" : "F8_E4M3";
  if (q.type == ValueType::i4) {
    tensors.push_back(packed(module, q));
    tensors.push_back(
        {module + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{q.rows, q.columns})});
  } else if (storage.codes == Storage::Codes::plain) {
    tensors.push_back({module + ".weight", dtype, {q.rows, q.columns}, bytes_of(q.codes)});
  } else {
    add_bitmask(module, q, storage.codes == Storage::Codes::bitmask_24, dtype, tensors);
  }
  const bool of_matrix = storage.scales == Storage::Scales::matrix;
  const std::vector<float> scales = of_matrix ? std::vector<float>{q.scales.front()} : q.scales;
  std::vector<int64_t> shape{of_matrix ? 1 : q.rows};
  if (storage.scales == Storage::Scales::columns_of_one) {
    shape.push_back(q.groups());
  }
  tensors.push_back({module + ".weight_scale", storage.scale_dtype, shape,
                     scale_bytes(scales, storage.scale_dtype)});
  return tensors;
}

void round_scales_to_bf16(QuantizedMatrix& q) {
  for (float& scale : q.scales) {
    scale = to_float(to_bfloat16(scale));
  }
}

QuantizedMatrix random_codes(ValueType type, int64_t rows, int64_t columns, int64_t group,
                             double density, uint64_t seed) {
  Random random(seed);
  QuantizedMatrix q{.type = type,
                    .rows = rows,
                    .columns = columns,
                    .group = type == ValueType::i4 ? group : columns};
  q.codes.resize(static_cast<size_t>(rows * columns));
  for (int8_t& code : q.codes) {
    const auto bits = static_cast<int>(random.below(type == ValueType::i4 ? 16 : 256));
    code = static_cast<int8_t>(type == ValueType::i4 ? bits - 8 : bits);
    const bool is_nan = type == ValueType::f8 && (code & 0x7f) == 0x7f;
    const bool is_negative_zero = type == ValueType::f8 && code == INT8_MIN;
    if (is_nan || is_negative_zero || random.uniform(0, 1) >= density) {
      code = 0;
    }
  }
  q.scales.resize(static_cast<size_t>(rows * q.groups()));
  for (float& scale : q.scales) {
    scale = std::ldexp(static_cast<float>(128 + random.below(128)), -18);
  }
  return q;
}

}  // namespace sparsellm::testing
