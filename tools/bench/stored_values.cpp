#include "tools/bench/stored_values.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
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

template <class T>
void round_all(std::string_view values, std::vector<std::byte>& bytes, ThreadPool& threads) {
  T* const all = reinterpret_cast<T*>(bytes.data());
  constexpr int64_t kGrain = 1 << 16;
  threads.parallel_for(std::ssize(bytes) / int64_t{sizeof(T)}, kGrain,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i) {
                           all[i] = from_float<T>(rounded(values, to_float(all[i])));
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
    round_all<Half>(values, bytes, ctx.threads);
  } else {
    round_all<BFloat16>(values, bytes, ctx.threads);
  }
  copy_bytes(ctx.device, w.raw(), {}, bytes.data(), w.bytes());
}

}  // namespace sparsellm
