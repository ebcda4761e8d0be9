#pragma once

#include <cstdint>

#include "kernels/device/mma.cuh"
#include "sparse/tca_bme/cuda/tile_sums.cuh"
#include "sparse/tca_bme/quantized/cuda/row_scales.cuh"
#include "sparse/tca_bme/quantized/cuda/wideners.cuh"

namespace sparsellm::tca_bme {

// The product of a record of narrow values that become 16 bits wide (PRODUCT, record_product.cuh).
// The four columns of a unit are two pairs of the operand; x is loaded accordingly. NT: tiles of 8
// tokens.
template <class WIDENER, int NT>
class WidenedProduct : public TileSums<NT> {
 public:
  using Element = typename WIDENER::Element;
  static constexpr int kTokenTiles = NT;
  static constexpr int kRecordColumns = QuantizedLayout::kColumns;
  static constexpr int kXPadding = 32;
  static constexpr bool kPreparesX = false;

  __device__ WidenedProduct(int lane, uint32_t x, uint32_t pitch, int group)
      : widener_(lane, group), x_(x + (lane >> 2) * pitch + (lane & 3) * 8), pitch_(pitch) {}

  __device__ void multiply(uint32_t base, int k) {
    multiply_at(base, static_cast<uint32_t>(k) * (kRecordColumns * 2));
  }
  __device__ void multiply_at(uint32_t base, uint32_t offset) {
    const uint32_t x = x_ + offset;
    uint2 b[NT][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      widener_.decode_half(base, half, [&](int i, int j, const uint32_t(&pairs)[4][2]) {
        const int c = kHalfChunks * half + i;
        if (j == 0 && c % 2 == 0) {
#pragma unroll
          for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              b[n][h] = load_shared2(x + n * 8 * pitch_ + c / 2 * 64 + h * 32);
            }
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t a[4] = {pairs[2 * h][0], pairs[2 * h + 1][0], pairs[2 * h][1],
                                 pairs[2 * h + 1][1]};
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            mma<Element>(this->sums_[2 * (c & 1) + j][n], a, b[n][h].x, b[n][h].y);
          }
        }
      });
    }
  }
  template <class Parameters>
  __device__ static auto scales(const Parameters& p, int first_row, int f, int lane) {
    return scales_of_widened<WIDENER>(p, first_row + f / NT * 16, lane);
  }
  template <class Parameters, class Scales>
  __device__ static void store(const Parameters& p, int first_row, int f, int lane, float4 sums,
                               const Scales& scales) {
    store_widened<WIDENER, Element>(p, first_row + f / NT * 16, f % NT * 8, lane, sums, scales);
  }

 private:
  __device__ static uint2 load_shared2(uint32_t a) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
    return v;
  }

  WIDENER widener_;
  uint32_t x_;
  uint32_t pitch_;
};

}  // namespace sparsellm::tca_bme
