#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "kernels/base/error.h"

namespace sparsellm {

// What elements are: of tensors that ops compute with (f32, f16, bf16, i32), and of the parts of
// encoded weights.
enum class DType : uint8_t { f32, f16, bf16, i32, u8, u16, u32, u64 };

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return 1;
    case DType::f16:
    case DType::bf16:
    case DType::u16:
      return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::u64:
      return 8;
  }
  return 1;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
    case DType::u64:
      return "u64";
  }
  return "?";
}

// As files in the safetensors format name it.
constexpr std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
    case DType::u16:
      return "U16";
    case DType::u32:
      return "U32";
    case DType::u64:
      return "U64";
  }
  return "?";
}

// Nothing for a name that safetensors does not have, or for a dtype that is only copied.
constexpr std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8, DType::u16,
                      DType::u32, DType::u64}) {
    if (safetensors_name(dtype) == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

// IEEE binary16 and bfloat16 as stored; arithmetic is done in f32.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// `a` or `b`, without a branch: loops over the conversions below are vectorised.
constexpr uint32_t select_bits(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

inline float to_float(float value) { return value; }

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline float to_float(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  // Shifted into place a binary16 is the f32 with an exponent too small by 112; the product
  // corrects it, exactly, for subnormals too.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t infinity_or_nan = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  const uint32_t result =
      select_bits(magnitude >= 0x7c00u, infinity_or_nan, std::bit_cast<uint32_t>(finite));
  return std::bit_cast<float>(sign | result);
}

// Round to nearest even; a NaN stays a NaN.
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t nan = bits >> 16 | 0x40u;
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return {static_cast<uint16_t>(select_bits((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded))};
}

inline Half to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  // The sum with 0.5 lets the f32 adder do the rounding.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = select_bits(magnitude < 0x38800000u, subnormal, normal);
  result = select_bits(magnitude >= 0x477ff000u, 0x7c00u, result);  // rounds to 65536 or more
  result = select_bits(magnitude > 0x7f800000u, 0x7e00u, result);
  return {static_cast<uint16_t>(sign | result)};
}

// The same by type.
template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline Half from_float<Half>(float value) {
  return to_half(value);
}
template <>
inline BFloat16 from_float<BFloat16>(float value) {
  return to_bfloat16(value);
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::u32;
};

// Calls body(T{}) with the element type of a floating dtype.
template <class Body>
void visit_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f16:
      return body(Half{});
    case DType::bf16:
      return body(BFloat16{});
    default:
      fail("expected a floating dtype, got {}", name_of(dtype));
  }
}

}  // namespace sparsellm
