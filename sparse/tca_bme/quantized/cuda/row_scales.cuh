#pragma once

#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/tile_sums.cuh"

namespace sparsellm::tca_bme {

// The scales of COUNT rows, 8 apart, from `first` on: those that a lane has of fragments, the first
// that of row lane / 4. Requested before sums are complete, they arrive meanwhile.
template <int COUNT>
struct RowScales {
  float of[COUNT];

  template <class Parameters>
  __device__ RowScales(const Parameters& p, int first) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      of[i] = first + 8 * i < p.rows ? __ldg(p.scales + first + 8 * i) : 0.f;
    }
  }
};
template <class T, class Parameters>
__device__ inline void store_scaled_fragment(const Parameters& p, int first_row, int first_token,
                                             int lane, float4 v, const RowScales<2>& scales) {
  store_fragment<T>(
      p, first_row, first_token, lane,
      make_float4(v.x * scales.of[0], v.y * scales.of[0], v.z * scales.of[1], v.w * scales.of[1]));
}

// Of 16 rows of what a WIDENER (wideners.cuh) has made of the values: the scales that it lacks, and
// how a fragment is stored.
template <class WIDENER, class Parameters>
__device__ inline auto scales_of_widened(const Parameters& p, int first_row, int lane) {
  if constexpr (WIDENER::kLacksScales) {
    return RowScales<2>(p, first_row + (lane >> 2));
  } else {
    return NoScales();
  }
}
template <class WIDENER, class T, class Parameters, class Scales>
__device__ inline void store_widened(const Parameters& p, int first_row, int first_token, int lane,
                                     float4 v, const Scales& scales) {
  if constexpr (WIDENER::kLacksScales) {
    constexpr float kFactor = WIDENER::kFactor;
    store_scaled_fragment<T>(
        p, first_row, first_token, lane,
        make_float4(v.x * kFactor, v.y * kFactor, v.z * kFactor, v.w * kFactor), scales);
  } else {
    store_fragment<T>(p, first_row, first_token, lane, v);
  }
}

}  // namespace sparsellm::tca_bme
