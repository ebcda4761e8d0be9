#include "tests/sparse/uneven_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/random.h"

namespace sparsellm::testing {
namespace {

// SplitMix64 (Steele et al., OOPSLA 2014), which is fast enough for each element.
class Bits {
 public:
  explicit Bits(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// One way in which densities differ from row to row, or from column to column.
std::vector<double> factors(int64_t count, Random& random) {
  std::vector<double> result(static_cast<size_t>(count), 1.0);
  switch (random.below(5)) {
    case 0:  // by factors
      for (double& factor : result) {
        factor = std::exp2(random.uniform(-4.0, 2.0));
      }
      break;
    case 1:  // some have nothing
      for (double& factor : result) {
        factor = random.below(3) == 0 ? 0.0 : 1.0;
      }
      break;
    case 2:  // a few have all
      for (double& factor : result) {
        factor = random.below(20) == 0 ? 1e9 : 1.0;
      }
      break;
    case 3:  // more from one end to the other
      for (int64_t i = 0; i < count; ++i) {
        result[static_cast<size_t>(i)] = 2.0 * static_cast<double>(i) / static_cast<double>(count);
      }
      break;
    default:
      break;
  }
  return result;
}

int64_t random_size(int64_t most, Random& random) {
  switch (random.below(4)) {
    case 0:  // around the borders of blocks
      return std::clamp<int64_t>(64 * random.below(most / 64 + 1) + random.below(5) - 2, 1, most);
    case 1:
      return 1 + random.below(20);
    default:
      return 1 + random.below(most);
  }
}

}  // namespace

OwnedTensor uneven_weight(uint64_t seed) {
  constexpr int64_t kBlockRows = 64;
  constexpr int64_t kBlockColumns = 128;
  Random random(seed);
  // One in 40 has 64 records and more, of which some may be called larger than others.
  const bool many_records = random.below(40) == 0;
  const int64_t rows = many_records ? 256 + random.below(450) : random_size(260, random);
  const int64_t columns = many_records           ? 700 + random.below(1400)
                          : random.below(4) == 0 ? random_size(700, random)
                                                 : random_size(260, random);
  const DType dtype = random.below(2) == 0 ? DType::f16 : DType::bf16;
  const double density =
      random.below(8) == 0 ? static_cast<double>(random.below(2)) : random.uniform(0.0, 1.0);
  // Those of many records are often even except for a full block.
  const bool even = many_records && random.below(3) != 0;
  const auto factors_of = [&](int64_t count) {
    return even ? std::vector<double>(static_cast<size_t>(count), 1.0) : factors(count, random);
  };
  const std::vector<double> row_factors = factors_of(rows);
  const std::vector<double> column_factors = factors_of(columns);
  // Of each block: full, empty, of another density, or as the rows and columns say.
  const int64_t block_columns = (columns + kBlockColumns - 1) / kBlockColumns;
  std::vector<double> block_factors(
      static_cast<size_t>((rows + kBlockRows - 1) / kBlockRows * block_columns), 1.0);
  const int64_t special = random.below(3) == 0 ? 0 : 1 + random.below(4);
  for (double& factor : block_factors) {
    if (!even && random.below(4) < special) {
      const int64_t kind = random.below(3);
      factor = kind == 0 ? 1e18 : kind == 1 ? 0.0 : random.uniform(0.0, 2.0);
    }
  }
  if (even) {
    block_factors[static_cast<size_t>(random.below(std::ssize(block_factors)))] = 1e18;
  }
  const uint16_t zero = random.below(4) == 0 ? 0x8000 : 0;

  OwnedTensor weight = allocate_tensor({}, dtype, {rows, columns}, "a weight");
  auto* next = static_cast<uint16_t*>(weight.view.raw());
  Bits bits(seed);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const double wanted = density * row_factors[static_cast<size_t>(row)] *
                            column_factors[static_cast<size_t>(column)] *
                            block_factors[static_cast<size_t>(row / kBlockRows * block_columns +
                                                              column / kBlockColumns)];
      const uint64_t drawn = bits.next();
      const bool nonzero = static_cast<double>(drawn >> 32) < wanted * 0x1p32;
      const auto value = static_cast<uint16_t>(drawn);
      *next++ = nonzero ? static_cast<uint16_t>((value & 0x7fff) == 0 ? value | 1 : value)
                        : static_cast<uint16_t>(zero & value);
    }
  }
  return weight;
}

}  // namespace sparsellm::testing
