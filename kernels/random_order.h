#pragma once

#include <bit>
#include <cstdint>

#include "kernels/counter_random.h"

namespace sparsellm {

// Random orders of `count` things, at least one, without a table and for kernels too: the place of
// each is a pure function of a seed, one order for each seed.
struct RandomOrder {
  uint64_t count;
  int bits;  // of count - 1
};
constexpr RandomOrder random_order(int64_t count) {
  const auto number = static_cast<uint64_t>(count);
  return {.count = number, .bits = static_cast<int>(std::bit_width(number - 1))};
}

// The place of the index-th, in [0, count). Each round is a permutation of the numbers of that many
// bits: a product with an odd factor and an exclusive or with the number's upper bits both have an
// inverse. A result that is not less than count goes through the rounds again (cycle walking: Black
// and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 3). With fewer than
// five rounds places that are a power of two apart are alike more often than chance makes them.
constexpr uint64_t place_in(const RandomOrder& order, uint64_t seed, uint64_t index) {
  constexpr int kRounds = 5;
  const uint64_t mask = (uint64_t{1} << order.bits) - 1;
  const int half = order.bits < 2 ? 1 : (order.bits + 1) / 2;
  uint64_t place = index;
  do {
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t key = mix_bits(seed + round * kRandomStep);
      place = (place * (key | 1) + (key >> 32)) & mask;
      place ^= place >> half;
    }
  } while (place >= order.count);
  return place;
}

}  // namespace sparsellm
