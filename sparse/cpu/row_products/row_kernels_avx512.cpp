// Products from compressed rows by AVX-512 F, BW, DQ and VL: of several tokens twice as many at a
// time as by AVX2.

#include <immintrin.h>

#include <cstdint>

#include "sparse/cpu/row_products/row_kernels.h"

namespace sparsellm::row_products {
namespace {

struct Vec {
  static constexpr int kWidth = 16;
  __m512 v;

  static Vec all(const float* p) { return {_mm512_set1_ps(*p)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
};
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

#include "sparse/cpu/row_products/sources_x86.inc.h"
//
#include "sparse/cpu/row_products/multiply_rows.inc.h"

}  // namespace

const Kernels kAvx512Kernels = {.f16 = multiply<F16>, .bf16 = multiply<Bf16>, .f32 = multiply<F32>};

}  // namespace sparsellm::row_products
