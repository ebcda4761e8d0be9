// Products from compressed rows by AVX2, FMA and F16C.

#include <immintrin.h>

#include <cstdint>

#include "sparse/cpu/row_products/row_kernels.h"

namespace sparsellm::row_products {
namespace {

struct Vec {
  static constexpr int kWidth = 8;
  __m256 v;

  static Vec all(const float* p) { return {_mm256_broadcast_ss(p)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

#include "sparse/cpu/row_products/sources_x86.inc.h"
//
#include "sparse/cpu/row_products/multiply_rows.inc.h"

}  // namespace

const Kernels kAvx2Kernels = {.f16 = multiply<F16>, .bf16 = multiply<Bf16>, .f32 = multiply<F32>};

}  // namespace sparsellm::row_products
