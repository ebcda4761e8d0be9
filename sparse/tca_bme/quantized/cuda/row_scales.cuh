#pragma once

#include "kernels/pipeline/fragment_store.cuh"

namespace sparsellm::tca_bme {

// The scales of the rows of the 64 that fragments of mma.m16n8k16 have, from
// `row` on.
template <class Parameters>
__device__ inline float row_scale(const Parameters& p, int row) {
  return row < p.rows ? __ldg(p.scales + row) : 0.f;
}
template <class T, class Parameters>
__device__ inline void store_scaled_fragment(const Parameters& p, int first_row, int first_token,
                                             int lane, float4 v) {
  const float upper = row_scale(p, first_row + (lane >> 2));
  const float lower = row_scale(p, first_row + 8 + (lane >> 2));
  store_fragment<T>(p, first_row, first_token, lane,
                    make_float4(v.x * upper, v.y * upper, v.z * lower, v.w * lower));
}

// The same for what a WIDENER (wideners.cuh) has made of the values.
template <class WIDENER, class T, class Parameters>
__device__ inline void store_widened(const Parameters& p, int first_row, int first_token, int lane,
                                     float4 v) {
  if constexpr (WIDENER::kLacksScales) {
    constexpr float kFactor = WIDENER::kFactor;
    store_scaled_fragment<T>(
        p, first_row, first_token, lane,
        make_float4(v.x * kFactor, v.y * kFactor, v.z * kFactor, v.w * kFactor));
  } else {
    store_fragment<T>(p, first_row, first_token, lane, v);
  }
}

}  // namespace sparsellm::tca_bme
