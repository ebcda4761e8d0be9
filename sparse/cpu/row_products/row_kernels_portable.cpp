// Products from compressed rows in plain C++, which the compiler turns into what the build's -march
// allows.

#include <cmath>

#include "kernels/base/dtype.h"
#include "sparse/cpu/row_products/row_kernels.h"

namespace sparsellm::row_products {
namespace {

template <int kFloats>
struct Floats {
  static constexpr int kWidth = kFloats;
  float v[kFloats];

  static Floats all(const float* p) {
    Floats result;
    for (float& x : result.v) {
      x = *p;
    }
    return result;
  }
  static Floats load(const float* p) {
    Floats result;
    for (float& x : result.v) {
      x = *p++;
    }
    return result;
  }
  void store(float* p) const {
    for (const float x : v) {
      *p++ = x;
    }
  }
};
template <int kFloats>
Floats<kFloats> fma(const Floats<kFloats>& a, const Floats<kFloats>& b, const Floats<kFloats>& c) {
  Floats<kFloats> result;
  for (int i = 0; i < kFloats; ++i) {
    result.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  }
  return result;
}
using One = Floats<1>;
using Vec = Floats<8>;

template <class T>
struct Converted {
  using Value = T;
  static void one(const Value* from, float* to) { *to = to_float(*from); }
  static void eight(const Value* from, float* to) {
    for (int i = 0; i < 8; ++i) {
      to[i] = to_float(from[i]);
    }
  }
};

#include "sparse/cpu/row_products/multiply_rows.inc.h"

}  // namespace

const Kernels kPortableKernels = {.f16 = multiply<Converted<Half>>,
                                  .bf16 = multiply<Converted<BFloat16>>,
                                  .f32 = multiply<Converted<float>>};

}  // namespace sparsellm::row_products
