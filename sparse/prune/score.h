#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/counter_random.h"

// The scores by which pruning chooses: a key of this many bits for each element, ordered like its
// score. A key is 0 for an element that is 0 or -0 and for no other. Elements that have no score
// are found beforehand by has_score().
namespace sparsellm {

inline uint32_t magnitude_bits(Half w) { return w.bits & 0x7fffu; }
inline uint32_t magnitude_bits(BFloat16 w) { return w.bits & 0x7fffu; }
inline uint32_t magnitude_bits(float w) { return std::bit_cast<uint32_t>(w) & 0x7fffffffu; }

inline constexpr uint32_t kInfinityBits = 0x7f800000u;  // of f32: a NaN has more

template <class T>
bool is_nan(T w) {
  return magnitude_bits(to_float(w)) > kInfinityBits;
}

// |w|: without their signs the bits of floating numbers are ordered like the numbers.
template <class T>
struct MagnitudeScore {
  static constexpr int kBits = 8 * sizeof(T);

  bool has_score(T w, int64_t) const { return !is_nan(w); }
  uint32_t key(T w, int64_t, int64_t) const { return magnitude_bits(w); }
};

// A random number of 31 bits for each position. Ranking them draws exactly as many elements as are
// wanted, and all subsets are equally likely except for the rare ties.
template <class T>
struct RandomScore {
  static constexpr int kBits = 32;
  uint64_t seed = 0;
  int64_t columns = 0;

  bool has_score(T w, int64_t) const { return !is_nan(w); }
  uint32_t key(T w, int64_t row, int64_t column) const {
    const auto random = static_cast<uint32_t>(uniform_bits(seed, row * columns + column) >> 22);
    return magnitude_bits(w) == 0 ? 0 : random + 1;
  }
};

// |w| * norm in f32, as its authors compute it. The score of a zero weight is 0 whatever the norm.
// One step up keeps weights whose score is 0, for the norm or by underflow, after zero weights.
template <class T>
struct WandaScore {
  static constexpr int kBits = 32;
  const float* norms = nullptr;  // [columns]

  bool has_score(T w, int64_t column) const {
    return magnitude_bits(w) == 0 || !is_nan(score(w, column));
  }
  uint32_t key(T w, int64_t, int64_t column) const {
    return magnitude_bits(w) == 0 ? 0 : std::bit_cast<uint32_t>(score(w, column)) + 1;
  }

 private:
  float score(T w, int64_t column) const { return std::fabs(to_float(w)) * norms[column]; }
};

}  // namespace sparsellm
