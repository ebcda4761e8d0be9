#include "sparse/quantize/quantized_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr ValueType kValueTypes[] = {ValueType::i8, ValueType::f8, ValueType::i4};
constexpr int64_t kMinElementsDequantized = 8 << 10;  // worth the waking of a thread

float e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  float magnitude = std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  } else if (exponent < 15 || mantissa < 7) {
    magnitude = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  }
  return (bits & 0x80u) != 0 ? -magnitude : magnitude;
}

// To odd: towards zero, and the last bit is set where that was not exact. Rounded once more, to a
// type that is narrower by two bits or more, this gives what rounding the double itself would.
float to_odd_float(double value) {
  const auto nearest = static_cast<float>(value);
  const auto rounded = static_cast<double>(nearest);
  const auto above = static_cast<uint32_t>(std::fabs(rounded) > std::fabs(value));
  const auto inexact = static_cast<uint32_t>(rounded != value);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(nearest) - above) | inexact);
}

template <class T>
T rounded_once(double value) {
  return from_float<T>(to_odd_float(value));
}
template <>
float rounded_once<float>(double value) {
  return static_cast<float>(value);
}

void require_valid_sizes(const QuantizedMatrix& q) {
  require(std::ranges::find(kValueTypes, q.type) != std::end(kValueTypes),
          "a quantised matrix of an unknown type {} of values", static_cast<int>(q.type));
  require(q.rows >= 0 && q.columns >= 0, "a quantised matrix of {} x {}", q.rows, q.columns);
  if (q.type == ValueType::i4) {
    require(std::ranges::find(kValueGroups, q.group) != std::end(kValueGroups),
            "{} columns of i4 share a scale; expected 32, 64 or 128", q.group);
  } else {
    require(q.group == q.columns, "{} of {} columns of {} share a scale; expected all", q.group,
            q.columns, name_of(q.type));
  }
  const int64_t elements = checked_mul(q.rows, q.columns, "elements of a quantised matrix");
  const auto codes = static_cast<int64_t>(q.codes.size());
  require(codes == elements, "a quantised matrix of {} x {} has {} codes", q.rows, q.columns,
          codes);
  const int64_t expected = checked_mul(q.rows, q.groups(), "scales of a quantised matrix");
  const auto scales = static_cast<int64_t>(q.scales.size());
  require(scales == expected, "a quantised matrix of {} x {} in groups of {} has {} scales, not {}",
          q.rows, q.columns, q.group, scales, expected);
}

void require_valid_scales(const QuantizedMatrix& q) {
  for (size_t i = 0; i < q.scales.size(); ++i) {
    const float scale = q.scales[i];
    const int64_t row = static_cast<int64_t>(i) / q.groups();
    const int64_t group = static_cast<int64_t>(i) % q.groups();
    require(std::isfinite(scale) && scale > 0.0f,
            "the scale of row {}, group {} is {}; expected a finite positive number", row, group,
            scale);
    require(q.type != ValueType::i4 || to_float(to_half(scale)) == scale,
            "the scale of row {}, group {} is {}, which is not a number of f16", row, group, scale);
  }
}

void require_valid_codes(const QuantizedMatrix& q) {
  const auto is_wrong = [type = q.type](int8_t code) {
    return (type == ValueType::i4 && (code < -8 || code > 7)) ||
           (type == ValueType::f8 && (code & 0x7f) == 0x7f);
  };
  if (q.type == ValueType::i8) {
    return;
  }
  const auto found = std::ranges::find_if(q.codes, is_wrong);
  if (found != q.codes.end()) {
    const int64_t place = found - q.codes.begin();
    fail("the code in row {}, column {} is {}, which is no number of {}", place / q.columns,
         place % q.columns, *found, name_of(q.type));
  }
}

}  // namespace

std::string_view name_of(ValueType type) {
  switch (type) {
    case ValueType::i8:
      return "i8";
    case ValueType::f8:
      return "f8";
    case ValueType::i4:
      return "i4";
  }
  return "?";
}

ValueType parse_value_type(std::string_view name) {
  for (ValueType type : kValueTypes) {
    if (name_of(type) == name) {
      return type;
    }
  }
  fail("the type of values {} is not known; use i8, f8 or i4", quote(name));
}

void require_valid(const QuantizedMatrix& q) {
  require_valid_sizes(q);
  require_valid_scales(q);
  require_valid_codes(q);
}

float value_of(ValueType type, int8_t code) {
  return type == ValueType::f8 ? e4m3_value(static_cast<uint8_t>(code)) : static_cast<float>(code);
}

OwnedTensor dequantize(const QuantizedMatrix& q, DType dtype, ThreadPool& threads) {
  require_valid(q);
  require(is_floating(dtype), "values are dequantised to f16, bf16 or f32, not to {}",
          name_of(dtype));
  std::array<double, 256> values{};
  for (size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = value_of(q.type, static_cast<int8_t>(bits));
  }
  OwnedTensor dense = allocate_tensor({}, dtype, {q.rows, q.columns}, "dequantised values");
  const int64_t grain = kMinElementsDequantized / std::max<int64_t>(q.columns, 1) + 1;
  visit_float(dtype, [&]<class T>(T) {
    threads.parallel_for(q.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int8_t* const codes = q.codes.data() + row * q.columns;
        const float* const scales = q.scales.data() + row * q.groups();
        T* const results = dense.view.row<T>(row);
        for (int64_t group = 0; group < q.groups(); ++group) {
          const double scale = scales[group];
          const int64_t first = group * q.group;
          const int64_t stop = std::min(q.columns, first + q.group);
          for (int64_t column = first; column < stop; ++column) {
            results[column] = rounded_once<T>(values[static_cast<uint8_t>(codes[column])] * scale);
          }
        }
      }
    });
  });
  return dense;
}

}  // namespace sparsellm
