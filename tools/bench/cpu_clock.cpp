#include "tools/bench/cpu_clock.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace sparsellm {

double measure_cpu_clock() {
#if defined(__x86_64__)
  constexpr int64_t kMultiplications = 100'000;
  constexpr double kCyclesEach = 3.0;
  double shortest = 1.0;  // seconds; the others were interrupted, or still slow
  for (int run = 0; run < 200; ++run) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t product = 3;
    for (int64_t i = 0; i < kMultiplications; ++i) {
      asm volatile("imul %0, %0" : "+r"(product));
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    shortest = std::min(shortest, taken.count());
  }
  return static_cast<double>(kMultiplications) * kCyclesEach / shortest;
#else
  return 0.0;
#endif
}

}  // namespace sparsellm
