#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/buffer.h"

namespace sparsellm::testing {

// What makes rounding a matrix to narrow values hard.
enum class Hardness : uint8_t {
  none,        // normally distributed; half of the zeros are -0
  uneven,      // rows and blocks of columns have densities and magnitudes of their own
  single,      // no row has more than one nonzero, a third have none
  equal,       // in a row, but for the signs: several scales are as good
  ties,        // few numbers, which lie halfway between codes at many scales
  subnormals,  // all nonzeros
  largest,     // a quarter are the largest number, which becomes infinite if it is rounded up
  outliers,    // a few are a thousand times as large as others
  any_bits,    // all finite numbers are as likely
};
inline constexpr Hardness kHardnesses[] = {
    Hardness::none,       Hardness::uneven,  Hardness::single,   Hardness::equal,   Hardness::ties,
    Hardness::subnormals, Hardness::largest, Hardness::outliers, Hardness::any_bits};
std::string_view name_of(Hardness hardness);

// A finite matrix of f16 or bf16 in host memory; an element is a nonzero with the probability
// `density`, but where the hardness says otherwise.
struct HardWeight {
  DType dtype = DType::f16;
  int64_t rows = 0;
  int64_t columns = 0;
  double density = 0.5;
  Hardness hardness = Hardness::none;
};
OwnedTensor make_hard_weight(const HardWeight& what, uint64_t seed);

}  // namespace sparsellm::testing
