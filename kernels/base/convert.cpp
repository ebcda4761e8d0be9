#include "kernels/base/convert.h"

#include <algorithm>
#include <cstring>

namespace sparsellm {
namespace {

constexpr int64_t kBlock = 1024;  // numbers; both copies of a block stay in the L1 cache

bool is_infinite(Half value) { return (value.bits & 0x7fffu) == 0x7c00u; }
bool is_infinite(BFloat16 value) { return (value.bits & 0x7fffu) == 0x7f80u; }
bool is_infinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7fffffffu) == 0x7f800000u;
}

template <class From, class To>
std::optional<float> find_overflow(const From* source, const To* result, int64_t count) {
  uint32_t overflows = 0;  // a sum of bits instead of an early exit: vectorised
  for (int64_t i = 0; i < count; ++i) {
    overflows |= static_cast<uint32_t>(is_infinite(result[i])) &
                 static_cast<uint32_t>(!is_infinite(source[i]));
  }
  for (int64_t i = 0; overflows != 0 && i < count; ++i) {
    if (is_infinite(result[i]) && !is_infinite(source[i])) {
      return to_float(source[i]);
    }
  }
  return std::nullopt;
}

template <class From, class To>
std::optional<float> convert_all(const std::byte* source, std::byte* destination, int64_t count) {
  From values[kBlock];
  To results[kBlock];
  std::optional<float> overflow;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    std::memcpy(values, source + begin * int64_t{sizeof(From)},
                static_cast<size_t>(n) * sizeof(From));
    for (int64_t i = 0; i < n; ++i) {
      results[i] = from_float<To>(to_float(values[i]));
    }
    if (!overflow) {
      overflow = find_overflow(values, results, n);
    }
    std::memcpy(destination + begin * int64_t{sizeof(To)}, results,
                static_cast<size_t>(n) * sizeof(To));
  }
  return overflow;
}

}  // namespace

std::optional<float> convert(DType from, const std::byte* source, DType to, std::byte* destination,
                             int64_t count) {
  std::optional<float> overflow;
  visit_float(from, [&]<class From>(From) {
    visit_float(
        to, [&]<class To>(To) { overflow = convert_all<From, To>(source, destination, count); });
  });
  return overflow;
}

int64_t count_overflows(DType from, const std::byte* source, DType to, int64_t count) {
  int64_t overflows = 0;
  visit_float(from, [&]<class From>(From value) {
    visit_float(to, [&]<class To>(To) {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(&value, source + i * int64_t{sizeof(From)}, sizeof(From));
        overflows += is_infinite(from_float<To>(to_float(value))) && !is_infinite(value) ? 1 : 0;
      }
    });
  });
  return overflows;
}

}  // namespace sparsellm
