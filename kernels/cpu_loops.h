#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/base/exec.h"
#include "kernels/base/simd.h"

// The two loops of the element-wise CPU ops: over the rows of a tensor, and over a row eight
// elements at a time.
namespace sparsellm {

// Elements that are worth the waking of a thread (1 to 2 us).
inline constexpr int64_t kMinElementsPerRange = 8 << 10;

// Calls body(row) for all rows, on several threads when there are enough elements.
template <class Body>
void for_each_row(int64_t rows, int64_t elements_per_row, ExecContext& ctx, Body&& body) {
  const int64_t grain = kMinElementsPerRange / std::max<int64_t>(elements_per_row, 1) + 1;
  ctx.threads.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      body(row);
    }
  });
}

// How many elements of a vector are meant: all, known at compile time, or a number below that.
using AllLanes = std::integral_constant<int64_t, F32x8::kWidth>;

// Calls body(i, lanes) for the stretches of eight of [0, count), and for the rest.
template <class Body>
void for_each_vector(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + F32x8::kWidth <= count; i += F32x8::kWidth) {
    body(i, AllLanes{});
  }
  if (i < count) {
    body(i, count - i);
  }
}

// Lanes beyond a partial count are loaded as 0 and not stored.
template <class T>
F32x8 load(const T* p, AllLanes) {
  return F32x8::load(p);
}
template <class T>
F32x8 load(const T* p, int64_t lanes) {
  return load_partial(p, lanes);
}
inline void store(F32x8 x, float* p, AllLanes) { x.store(p); }
inline void store(F32x8 x, float* p, int64_t lanes) { store_partial(x, p, lanes); }

// x with 0 in the lanes beyond a partial count, so that they add nothing to a sum.
inline F32x8 keep_lanes(F32x8 x, AllLanes) { return x; }
inline F32x8 keep_lanes(F32x8 x, int64_t lanes) {
  float all[F32x8::kWidth];
  x.store(all);
  return load_partial(all, lanes);
}

}  // namespace sparsellm
