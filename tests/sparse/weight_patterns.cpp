#include "tests/sparse/weight_patterns.h"

#include <algorithm>
#include <random>
#include <span>

#include "kernels/base/error.h"

namespace sparsellm::testing {
namespace {

constexpr uint16_t kSign = 0x8000;
constexpr int64_t kTile = 16;

struct Float16Layout {
  int mantissa_bits = 0;
  uint32_t one = 0;  // the exponent field of 1
};
Float16Layout layout_of(DType dtype) {
  require(dtype == DType::f16 || dtype == DType::bf16, "a test weight of {} values",
          name_of(dtype));
  return dtype == DType::f16 ? Float16Layout{10, 15} : Float16Layout{7, 127};
}

bool allows(const WeightSpec& spec, int64_t row, int64_t column) {
  const auto in_tile = [](int64_t index, int64_t size) {
    return index / kTile == size / 2 / kTile;
  };
  switch (spec.pattern) {
    case Pattern::one_row:
      return row == spec.rows / 2;
    case Pattern::one_column:
      return column == spec.columns / 2;
    case Pattern::one_tile:
      return in_tile(row, spec.rows) && in_tile(column, spec.columns);
    default:
      return true;
  }
}

constexpr uint64_t kAlways = 1u << 24;
uint64_t threshold(double probability) {
  return static_cast<uint64_t>(probability * static_cast<double>(kAlways));
}
// By the 24 bits from `shift` on.
bool happens(uint64_t random, int shift, uint64_t threshold) {
  return (random >> shift & (kAlways - 1)) < threshold;
}

std::span<uint16_t> elements_of(const Tensor& w) {
  layout_of(w.dtype());
  require(w.contiguous(), "a test weight with strided rows");
  return {static_cast<uint16_t*>(w.raw()), static_cast<size_t>(w.element_count())};
}

}  // namespace

std::string_view name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::random:
      return "random";
    case Pattern::one_row:
      return "one row";
    case Pattern::one_column:
      return "one column";
    case Pattern::one_tile:
      return "one tile";
    case Pattern::negative_zeros:
      return "negative zeros";
    case Pattern::subnormals:
      return "subnormals";
    case Pattern::infinities:
      return "infinities";
  }
  return "?";
}

OwnedTensor make_weight(const WeightSpec& spec, uint64_t seed) {
  OwnedTensor w = allocate_tensor({}, spec.dtype, {spec.rows, spec.columns}, "a test weight");
  const Float16Layout layout = layout_of(spec.dtype);
  const uint32_t mantissa_mask = (1u << layout.mantissa_bits) - 1;
  const uint64_t nonzeros = threshold(spec.density);
  const uint64_t infinities =
      threshold(1.0 / std::max(spec.density * static_cast<double>(spec.columns), 1.0));
  std::mt19937_64 engine(seed);
  uint16_t* element = elements_of(w.view).data();
  for (int64_t row = 0; row < spec.rows; ++row) {
    for (int64_t column = 0; column < spec.columns; ++column) {
      const uint64_t random = engine();
      const uint32_t sign = random & kSign;
      const uint32_t mantissa = random & mantissa_mask;
      const uint32_t exponent = layout.one - 1 - static_cast<uint32_t>(random >> 10 & 0xf) % 5;
      uint32_t bits = 0;
      if (!happens(random, 40, nonzeros) || !allows(spec, row, column)) {
        bits = spec.pattern == Pattern::negative_zeros ? sign : 0;
      } else if (spec.pattern == Pattern::subnormals) {
        bits = sign | mantissa | 1;
      } else if (spec.pattern == Pattern::infinities && happens(random, 16, infinities)) {
        bits = sign | (0x7fffu & ~mantissa_mask);
      } else {
        bits = sign | exponent << layout.mantissa_bits | mantissa;
      }
      *element++ = static_cast<uint16_t>(bits);
    }
  }
  return w;
}

OwnedTensor copy_of(const Tensor& w) {
  OwnedTensor copy = allocate_tensor({}, w.dtype(), {w.size(0), w.size(1)}, "a test weight");
  const int64_t row_bytes = w.size(1) * size_of(w.dtype());
  for (int64_t row = 0; row < w.size(0); ++row) {
    copy_bytes({}, copy.view.rows(row, 1).raw(), {}, w.rows(row, 1).raw(), row_bytes);
  }
  return copy;
}

void clear_negative_zeros(const Tensor& w) {
  for (uint16_t& element : elements_of(w)) {
    element = element == kSign ? uint16_t{0} : element;
  }
}

int64_t nonzeros_of(const Tensor& w) {
  return std::ranges::count_if(elements_of(w), [](uint16_t bits) { return (bits & 0x7fff) != 0; });
}

}  // namespace sparsellm::testing
