#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/sparse/general_sparse/host_grid.h"

// More of CUDA for run_grid(): arithmetic that rounds every operation, votes, atomics.

// Compilers make no multiply-add of these: the project is compiled with -ffp-contract=off.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }

inline void __syncwarp() { sparsellm::testing::exchange("syncwarp", 0, 0); }
inline int __shfl_xor_sync(unsigned, int x, int bits) {
  const unsigned* const all = sparsellm::testing::exchange(
      "shfl_xor of int", static_cast<unsigned>(bits), static_cast<unsigned>(x));
  return static_cast<int>(all[threadIdx.x % 32 ^ static_cast<unsigned>(bits)]);
}
// Lanes that none is so far before have their own.
inline unsigned __shfl_up_sync(unsigned, unsigned x, int distance) {
  const unsigned* const all =
      sparsellm::testing::exchange("shfl_up", static_cast<unsigned>(distance), x);
  const unsigned lane = threadIdx.x % 32;
  const auto by = static_cast<unsigned>(distance);
  return all[lane < by ? lane : lane - by];
}
inline double __shfl_sync(unsigned, double x, int lane) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto from = static_cast<unsigned>(lane);
  const uint64_t low =
      sparsellm::testing::exchange("shfl, low", from, static_cast<unsigned>(bits))[from];
  const uint64_t high =
      sparsellm::testing::exchange("shfl, high", from, static_cast<unsigned>(bits >> 32))[from];
  return std::bit_cast<double>(high << 32 | low);
}
inline unsigned __reduce_add_sync(unsigned, unsigned x) {
  const unsigned* const all = sparsellm::testing::exchange("reduce_add", 0, x);
  unsigned sum = 0;
  for (int lane = 0; lane < 32; ++lane) {
    sum += all[lane];
  }
  return sum;
}

// Threads of run_grid() take turns.
inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long x) {
  const unsigned long long before = *to;
  *to += x;
  return before;
}
inline unsigned atomicOr(unsigned* to, unsigned bits) {
  const unsigned before = *to;
  *to |= bits;
  return before;
}
