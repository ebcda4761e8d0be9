#pragma once

#include <cstdint>

namespace sparsellm {

// Random numbers without a state, for the host and for kernels: the index-th number of a stream is
// a pure function of the stream's seed and the index (a counter-based generator; the numbers are
// those of SplitMix64, Steele et al. 2014, started at mix_bits(seed)).

inline constexpr uint64_t kRandomStep = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd

// Stafford's variant 13 of the 64-bit finalizer.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Uniform among the whole numbers below 2^53.
constexpr uint64_t uniform_bits(uint64_t seed, int64_t index) {
  return mix_bits(mix_bits(seed) + (static_cast<uint64_t>(index) + 1) * kRandomStep) >> 11;
}

// The same number, uniform in [0, 1).
constexpr double uniform(uint64_t seed, int64_t index) {
  return static_cast<double>(uniform_bits(seed, index)) * 0x1p-53;
}

}  // namespace sparsellm
