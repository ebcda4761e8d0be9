#pragma once

#include <cstdint>

#include "kernels/device/wgmma_bytes.cuh"
#include "sparse/tca_bme/cuda/record_wgmma_product.cuh"
#include "sparse/tca_bme/quantized/cuda/row_scales.cuh"
#include "sparse/tca_bme/quantized/cuda/tile_decoder.cuh"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"

namespace sparsellm::tca_bme {

// Where the units of the tile are in a record, and their bits, in each quarter of its columns.
struct BytePlaces {
  uint32_t at[4][4];  // of unit (q, h): 2 h + q
  uint32_t own[4];
};

template <int OFFSETS>
__device__ inline void locate_bytes(BytePlaces& places, uint32_t base,
                                    const ByteTileDecoder<OFFSETS>& decoder) {
  uint32_t turned[4];
  decoder.load(turned, places.own, base);
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    decoder.locate(places.at[quarter], base, quarter, turned[quarter]);
    places.own[quarter] >>= decoder.shift;
  }
}
template <int OFFSETS>
__device__ inline void load_bytes(uint32_t (&a)[4], const BytePlaces& places, int quarter,
                                  const ByteTileDecoder<OFFSETS>&) {
  const uint32_t(&at)[4] = places.at[quarter];
  const uint32_t bits[2] = {places.own[quarter], places.own[quarter] >> 16};
  a[0] = load_unit<0>(at[0], bits[0], 0);
  a[1] = load_unit<0>(at[1], bits[1], 0);
  a[2] = load_unit<1>(at[2], bits[0], 0);
  a[3] = load_unit<1>(at[3], bits[1], 0);
}

// Dense records.
__device__ inline void locate_bytes(BytePlaces& places, uint32_t base,
                                    const ByteTileDecoder<0>& decoder) {
  places.at[0][0] = base + decoder.offsets_at;
}
__device__ inline void load_bytes(uint32_t (&a)[4], const BytePlaces& places, int quarter,
                                  const ByteTileDecoder<0>&) {
  load_four(a, places.at[0][0] + quarter * (4 * kTileValueBytes));
}

// The product of a record of i8 in integers by a warpgroup (PRODUCT of record_wgmma_kernel), for
// tiles of N tokens: x is two planes of bytes (x_planes.h), and the sums of a block of its columns
// are exact. OFFSETS: of a chunk, 0 of a dense record.
template <class T, int N, int OFFSETS>
struct ByteWgmmaProduct {
  using Element = T;
  static constexpr int kTokens = N;
  static constexpr int kXRows = kPlanes * N;
  static constexpr int kConsumers = byte_consumers_for(N);
  static constexpr int kRecordUnits = 1;  // 128 columns of a byte
  static constexpr int kSpanRecords = kPlaneBlock / QuantizedLayout::kColumns;
  static constexpr int kBlockSteps = kSpanRecords / 2;

  using Decoder = ByteTileDecoder<OFFSETS>;
  using Places = BytePlaces;
  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    static_assert(UNIT == 0);
    locate_bytes(places, base, decoder);
  }
  __device__ static void load(uint32_t (&a)[4], const Places& places, int c,
                              const Decoder& decoder) {
    load_bytes(a, places, c, decoder);
  }

  class Sums {
   public:
    __device__ explicit Sums(uint32_t totals) : totals_(totals) {}
    __device__ void clear() {
#pragma unroll
      for (int f = 0; f < N / 8; ++f) {
        store(f, make_float4(0.f, 0.f, 0.f, 0.f));
      }
      clear_sums();
    }
    __device__ void multiply(const uint32_t (&a)[4], uint32_t b, int c) {
      wgmma_bytes(sums_, a, b + c * 32 / 16);
    }
    // The scales of the lane's tokens of this block of x's columns.
    template <class Parameters>
    __device__ void finish(const Parameters& p, int tile, int block, int lane) {
      const float* const scales =
          p.x_scales + (static_cast<int64_t>(tile) * p.x_blocks + block) * N + 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        asm volatile("" : "+r"(sums_[i]));
      }
#pragma unroll
      for (int f = 0; f < N / 8; ++f) {
        const float2 scale = *reinterpret_cast<const float2*>(scales + 8 * f);
        float4 total = fragment(f);
        total.x += scale.x * sum(2 * f, 0);
        total.y += scale.y * sum(2 * f + 1, 0);
        total.z += scale.x * sum(2 * f, 1);
        total.w += scale.y * sum(2 * f + 1, 1);
        store(f, total);
      }
      clear_sums();
    }
    __device__ float4 fragment(int f) const {
      if constexpr (kInRegisters) {
        return held_[f];
      }
      float4 v;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                   : "r"(totals_ + f * kStride)
                   : "memory");
      return v;
    }

   private:
    // Where each thread finds its totals in shared memory, 16 bytes of all threads of a block side
    // by side. With those of few tokens in registers there would be fewer warps.
    static constexpr bool kInRegisters = !has_shared_totals(N);
    static constexpr uint32_t kStride = kConsumers * 128 * 16;

    // Of the n-th eight rows of x, whose bytes the lane has of one token, row 8 h + g.
    __device__ float sum(int n, int h) const {
      return static_cast<float>(256 * sums_[4 * n + 2 * h] + sums_[4 * n + 2 * h + 1]);
    }
    __device__ void store(int f, float4 v) {
      if constexpr (kInRegisters) {
        held_[f] = v;
        return;
      }
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(totals_ + f * kStride),
                   "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                   : "memory");
    }
    __device__ void clear_sums() {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sums_[i] = 0;
      }
    }

    int sums_[N];
    uint32_t totals_;
    float4 held_[kInRegisters ? N / 8 : 1];
  };

  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int first_token, int lane,
                               float4 v) {
    store_scaled_fragment<T>(p, first_row, first_token, lane, v,
                             RowScales<2>(p, first_row + (lane >> 2)));
  }
};

}  // namespace sparsellm::tca_bme
