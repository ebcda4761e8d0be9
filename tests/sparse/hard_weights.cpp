#include "tests/sparse/hard_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/random.h"

namespace sparsellm::testing {
namespace {

constexpr uint16_t kNegative = 0x8000;
constexpr int64_t kBlock = 48;  // columns that are alike

class Weights {
 public:
  Weights(DType dtype, uint64_t seed)
      : is_half_(dtype == DType::f16),
        infinity_(is_half_ ? 0x7c00 : 0x7f80),
        least_normal_(is_half_ ? 0x0400 : 0x0080),
        random_(seed) {}

  bool happens(double probability) { return random_.uniform(0.0, 1.0) < probability; }
  int64_t below(int64_t count) { return random_.below(count); }
  double uniform(double low, double high) { return random_.uniform(low, high); }

  uint16_t zero() { return happens(0.5) ? kNegative : 0; }
  uint16_t number(double value) const {
    const auto rounded = static_cast<float>(value);
    return is_half_ ? to_half(rounded).bits : to_bfloat16(rounded).bits;
  }
  // A sum of uniform numbers has tails enough.
  double normal() {
    double sum = 0.0;
    for (int i = 0; i < 6; ++i) {
      sum += random_.uniform(-1.0, 1.0);
    }
    return 0.02 * sum;
  }
  uint16_t between(int64_t low, int64_t end) {  // by bits, of either sign
    return static_cast<uint16_t>(low + random_.below(end - low) + zero());
  }

  uint16_t between_zero_and_largest() {
    const double largest = is_half_ ? 65504.0 : 0x1.fep127;
    return static_cast<uint16_t>(number(random_.uniform(0.001, 1.0) * largest) | zero());
  }

  uint16_t nonzero(Hardness hardness) {
    switch (hardness) {
      case Hardness::ties:
        return number(0.25 * static_cast<double>(1 + random_.below(30)) *
                      (happens(0.5) ? 1.0 : -1.0));
      case Hardness::subnormals:
        return between(1, least_normal_);
      case Hardness::largest:
        return happens(0.25) ? between(infinity_ - 1, infinity_) : between_zero_and_largest();
      case Hardness::outliers:
        return number(normal() * (happens(0.01) ? 1000.0 : 1.0));
      case Hardness::any_bits:
        return between(1, infinity_);
      default:
        return number(normal());
    }
  }

 private:
  bool is_half_;
  int64_t infinity_;
  int64_t least_normal_;
  Random random_;
};

}  // namespace

std::string_view name_of(Hardness hardness) {
  switch (hardness) {
    case Hardness::none:
      return "none";
    case Hardness::uneven:
      return "uneven";
    case Hardness::single:
      return "single";
    case Hardness::equal:
      return "equal";
    case Hardness::ties:
      return "ties";
    case Hardness::subnormals:
      return "subnormals";
    case Hardness::largest:
      return "largest";
    case Hardness::outliers:
      return "outliers";
    case Hardness::any_bits:
      return "any bits";
  }
  return "?";
}

OwnedTensor make_hard_weight(const HardWeight& what, uint64_t seed) {
  OwnedTensor w = allocate_tensor({}, what.dtype, {what.rows, what.columns}, "a test weight");
  Weights weights(what.dtype, seed);
  auto* next = static_cast<uint16_t*>(w.view.raw());
  for (int64_t row = 0; row < what.rows; ++row) {
    uint16_t* const values = next;
    next += what.columns;
    if (what.hardness == Hardness::single) {
      std::fill(values, next, uint16_t{0});
      if (what.columns > 0 && row % 3 != 2) {
        values[weights.below(what.columns)] = weights.nonzero(Hardness::any_bits);
      }
      continue;
    }
    const uint16_t of_row = weights.nonzero(Hardness::none);
    double density = what.density;
    double size = 1.0;
    for (int64_t column = 0; column < what.columns; ++column) {
      if (what.hardness == Hardness::uneven && column % kBlock == 0) {
        density = weights.happens(0.2) ? 0.0 : std::min(1.0, what.density * weights.uniform(0, 2));
        size = std::exp2(weights.uniform(-12.0, 8.0));
      }
      if (!weights.happens(density)) {
        values[column] = weights.zero();
      } else if (what.hardness == Hardness::uneven) {
        values[column] = weights.number(size * weights.normal());
      } else if (what.hardness == Hardness::equal) {
        values[column] = static_cast<uint16_t>(of_row ^ weights.zero());
      } else {
        values[column] = weights.nonzero(what.hardness);
      }
    }
  }
  return w;
}

}  // namespace sparsellm::testing
