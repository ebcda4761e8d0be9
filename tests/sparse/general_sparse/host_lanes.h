#pragma once

#include <array>
#include <bit>
#include <limits>

// Lets the host compile device code that calls nothing of CUDA (reductions.cuh).
#define __device__
#include "sparse/general_sparse/device/reductions.cuh"
#undef __device__

namespace sparsellm::testing {

// 32 lanes of a warp in lockstep: a variable has a value for each. What the hardware leaves
// undefined, from lanes that are not there, is NaN.
template <class Value>
struct Lane32 {
  std::array<Value, 32> of{};
};

using LaneFloats = Lane32<float>;
using LaneInts = Lane32<int>;
using LaneBools = Lane32<bool>;

inline LaneFloats operator+(const LaneFloats& a, const LaneFloats& b) {
  LaneFloats sums;
  for (size_t lane = 0; lane < 32; ++lane) {
    sums.of[lane] = a.of[lane] + b.of[lane];
  }
  return sums;
}

inline LaneBools operator>(const LaneInts& a, int b) {
  LaneBools greater;
  for (size_t lane = 0; lane < 32; ++lane) {
    greater.of[lane] = a.of[lane] > b;
  }
  return greater;
}

// Stands for general_sparse::WarpLanes<G>.
template <int G>
struct HostLanes {
  static constexpr int kGroups = 32 / G;
  using Float = LaneFloats;

  static LaneBools in_group_with(int bit) {
    LaneBools in;
    for (int lane = 0; lane < 32; ++lane) {
      in.of[static_cast<size_t>(lane)] = (lane / G & bit) != 0;
    }
    return in;
  }

  static LaneInts distance_to(unsigned bits) {
    LaneInts distances;
    for (int lane = 0; lane < 32; ++lane) {
      const unsigned rest = bits >> (lane / G);
      distances.of[static_cast<size_t>(lane)] = rest == 0 ? 0 : std::countr_zero(rest) + 1;
    }
    return distances;
  }

  static LaneFloats from_later(const LaneFloats& x, int distance) {
    LaneFloats later;
    for (int lane = 0; lane < 32; ++lane) {
      const int from = lane + distance * G;
      later.of[static_cast<size_t>(lane)] =
          from < 32 ? x.of[static_cast<size_t>(from)] : std::numeric_limits<float>::quiet_NaN();
    }
    return later;
  }

  static LaneFloats exchange(const LaneFloats& x, int bit) {
    LaneFloats other;
    for (int lane = 0; lane < 32; ++lane) {
      other.of[static_cast<size_t>(lane)] = x.of[static_cast<size_t>(lane ^ (bit * G))];
    }
    return other;
  }

  static LaneFloats select(const LaneBools& condition, const LaneFloats& a, const LaneFloats& b) {
    LaneFloats chosen;
    for (size_t lane = 0; lane < 32; ++lane) {
      chosen.of[lane] = condition.of[lane] ? a.of[lane] : b.of[lane];
    }
    return chosen;
  }
};

}  // namespace sparsellm::testing
