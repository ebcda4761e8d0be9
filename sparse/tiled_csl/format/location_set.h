#pragma once

#include <array>
#include <bit>
#include <cassert>
#include <cstdint>

#include "sparse/tiled_csl/format/tile_layout.h"

namespace sparsellm::tiled_csl {

// Locations of a tile.
class LocationSet {
 public:
  // Whether it is new; location < kTileElements.
  bool insert(uint32_t location) {
    const uint64_t bit = uint64_t{1} << location % 64;
    uint64_t& bits = bits_[location / 64];
    const bool is_new = (bits & bit) == 0;
    bits |= bit;
    return is_new;
  }

  bool contains(uint32_t location) const {
    return (bits_[location / 64] >> location % 64 & 1) != 0;
  }

  // Not all may be in the set.
  uint32_t lowest_missing() const {
    uint32_t i = 0;
    while (bits_[i] == ~uint64_t{0}) {
      ++i;
      assert(i < bits_.size());
    }
    return i * 64 + static_cast<uint32_t>(std::countr_one(bits_[i]));
  }

 private:
  std::array<uint64_t, kTileElements / 64> bits_{};
};

}  // namespace sparsellm::tiled_csl
