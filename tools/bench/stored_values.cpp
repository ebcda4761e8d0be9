#include "tools/bench/stored_values.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Steps of i8 and i4 from 0 to 1, the sign not counted.
float to_steps(float v, float steps) {
  const float most = steps - 1.0F;
  const float rounded = std::clamp(std::nearbyint(std::abs(v) * steps), 1.0F, most);
  return std::copysign(rounded / steps, v);
}

// 4 significant bits, at least 2^-6.
float to_e4m3(float v) {
  int exponent = 0;
  const float mantissa = std::frexp(v, &exponent);
  constexpr int kBits = 4;
  constexpr int kSmallest = -5;  // of an exponent, by frexp()
  if (exponent < kSmallest) {
    return std::copysign(std::ldexp(0.5F, kSmallest), v);
  }
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, kBits)), exponent - kBits);
}

float rounded(std::string_view values, float v) {
  if (v == 0.0F) {
    return v;
  }
  if (values == "i8") {
    constexpr float kSteps = 128.0F;
    return to_steps(v, kSteps);
  }
  if (values == "f8") {
    return to_e4m3(v);
  }
  constexpr float kSteps = 8.0F;
  return to_steps(v, kSteps);
}

// The scale that is always tried maps the largest weight of a row to the largest number: so that
// all the others are numbers, too, this has to be the one that it maps to.
template <class T>
void grow_largest(std::span<T> row) {
  const auto largest = std::ranges::max_element(row, {}, [](T v) { return std::abs(to_float(v)); });
  if (largest != row.end() && to_float(*largest) != 0.0F) {
    constexpr float kMost = 127.0F / 128.0F;
    *largest = from_float<T>(std::copysign(kMost, to_float(*largest)));
  }
}

template <class T>
void round_all(std::string_view values, int64_t columns, std::vector<std::byte>& bytes,
               ThreadPool& threads) {
  T* const all = reinterpret_cast<T*>(bytes.data());
  constexpr int64_t kGrainElements = 1 << 16;
  const int64_t rows = columns == 0 ? 0 : std::ssize(bytes) / int64_t{sizeof(T)} / columns;
  threads.parallel_for(rows, kGrainElements / std::max<int64_t>(columns, 1) + 1,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t r = begin; r < end; ++r) {
                           const std::span<T> row(all + r * columns, static_cast<size_t>(columns));
                           for (T& v : row) {
                             v = from_float<T>(rounded(values, to_float(v)));
                           }
                           if (values == "i8") {
                             grow_largest(row);
                           }
                         }
                       });
}

}  // namespace

void round_to_values(std::string_view values, const Tensor& w, ExecContext& ctx) {
  require(w.contiguous() && (w.dtype() == DType::f16 || w.dtype() == DType::bf16),
          "values are rounded in contiguous matrices of f16 or bf16");
  std::vector<std::byte> bytes(static_cast<size_t>(w.bytes()));
  copy_bytes({}, bytes.data(), ctx.device, w.raw(), w.bytes());
  if (w.dtype() == DType::f16) {
    round_all<Half>(values, w.row_size(), bytes, ctx.threads);
  } else {
    round_all<BFloat16>(values, w.row_size(), bytes, ctx.threads);
  }
  copy_bytes(ctx.device, w.raw(), {}, bytes.data(), w.bytes());
}

}  // namespace sparsellm
