#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "sparse/tca_bme/cuda/record_wgmma_product.cuh"
#include "sparse/tca_bme/quantized/cuda/nibble_factor.cuh"
#include "sparse/tca_bme/quantized/cuda/row_scales.cuh"
#include "sparse/tca_bme/quantized/cuda/tile_decoder.cuh"
#include "sparse/tca_bme/quantized/cuda/wideners.cuh"

// How a warp makes pairs of T of the values of a tile of 16 rows (quantized/cuda/wideners.cuh), in
// units of 64 columns: pairs[q] of a product c of 16 columns are those of row 8 q + g.
namespace sparsellm::tca_bme {

// Where the values of a tile are, and its bits, in both quarters of a unit.
struct UnitPlaces {
  uint32_t at[2][4];
  uint32_t bits[2];

  // After that of the unit before.
  template <int UNIT, class Decoder>
  __device__ void locate(uint32_t base, const Decoder& decoder) {
    if constexpr (UNIT == 0) {
      decoder.load(turned_, own_, base);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int quarter = 2 * UNIT + i;
      decoder.locate(at[i], base, quarter, turned_[quarter]);
      bits[i] = own_[quarter] >> decoder.shift;
    }
  }

 private:
  uint32_t turned_[4], own_[4];  // of all quarters
};

// Of 8 bits.
template <class T, QuantizedLayout::Values VALUES, int OFFSETS>
struct ByteTileWidener {
  using Decoder = ByteTileDecoder<OFFSETS>;
  using Widener = ByteWidener<T, VALUES, OFFSETS>;
  static constexpr bool kLacksScales = Widener::kLacksScales;
  static constexpr float kFactor = Widener::kFactor;

  using Places = UnitPlaces;
  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    places.template locate<UNIT>(base, decoder);
  }
  __device__ static void load(uint32_t (&pairs)[2][2], Places& places, int c, const Decoder&) {
    const uint32_t(&at)[4] = places.at[c / 2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint32_t bits = places.bits[c / 2] >> (16 * q);
      Widener::widen(c % 2 == 0 ? load_unit<0>(at[q], bits, 0) : load_unit<1>(at[2 + q], bits, 0),
                     pairs[q]);
    }
  }
};
template <class T, QuantizedLayout::Values VALUES>
struct ByteTileWidener<T, VALUES, 0> {
  using Decoder = ByteTileDecoder<0>;
  using Widener = ByteWidener<T, VALUES, 0>;
  static constexpr bool kLacksScales = Widener::kLacksScales;
  static constexpr float kFactor = Widener::kFactor;

  struct Places {
    uint32_t at;
    uint32_t values[4];  // of the quarter
  };
  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    places.at = base + decoder.offsets_at + UNIT * (8 * kTileValueBytes);
  }
  __device__ static void load(uint32_t (&pairs)[2][2], Places& places, int c, const Decoder&) {
    if (c % 2 == 0) {
      load_four(places.values, places.at + c / 2 * (4 * kTileValueBytes));
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      Widener::widen(places.values[c % 2 * 2 + q], pairs[q]);
    }
  }
};

// Of i4, with their scales.
template <class T, int OFFSETS>
struct NibbleTileWidener {
  using Decoder = NibbleTileDecoder<OFFSETS>;
  static constexpr bool kLacksScales = false;
  static constexpr float kFactor = 1.f;

  struct Places : UnitPlaces {
    __half2 scales[2];
    uint32_t held[2];  // of both q, what the next product takes
  };
  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    places.template locate<UNIT>(base, decoder);
    decoder.scales.template load_of_unit<UNIT>(places.scales, base);
  }
  __device__ static void load(uint32_t (&pairs)[2][2], Places& places, int c, const Decoder&) {
    const uint32_t(&at)[4] = places.at[c / 2];
    const __half2 scales = places.scales[c / 2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      uint32_t bytes = places.held[q];
      if (c % 2 == 0) {
        uint32_t units[2];
        load_nibbles<0>(units, at[q], at[2 + q], places.bits[c / 2] >> (16 * q));
        bytes = units[0];
        places.held[q] = units[1];
      }
      NibbleFactor<T>(q == 0 ? __low2half(scales) : __high2half(scales)).widen(bytes, pairs[q]);
    }
  }
};
template <class T>
struct NibbleTileWidener<T, 0> {
  using Decoder = NibbleTileDecoder<0>;
  static constexpr bool kLacksScales = false;
  static constexpr float kFactor = 1.f;

  struct Places {
    uint32_t at;
    uint32_t values[4];
    __half2 scales[2];
  };
  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    places.at = base + decoder.offsets_at + UNIT * (4 * kTileValueBytes);
    decoder.scales.template load_of_unit<UNIT>(places.scales, base);
  }
  __device__ static void load(uint32_t (&pairs)[2][2], Places& places, int c, const Decoder&) {
    if (c == 0) {
      load_four(places.values, places.at);
    }
    const __half2 scales = places.scales[c / 2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint32_t bytes = (places.values[c % 2 * 2 + q] >> (c / 2 * 4)) & 0x0f0f0f0fu;
      NibbleFactor<T>(q == 0 ? __low2half(scales) : __high2half(scales)).widen(bytes, pairs[q]);
    }
  }
};

// The product of a record of narrow values that become 16 bits wide, by a warpgroup (PRODUCT of
// record_wgmma_kernel), for tiles of N tokens. The four columns of a unit are two pairs of the
// operand: x lies in the order of x_units.h.
template <class T, class WIDENER, int N>
struct WidenedWgmmaProduct {
  using Element = T;
  static constexpr int kTokens = N;
  static constexpr int kXRows = N;
  static constexpr int kConsumers = consumers_for(N);
  static constexpr int kRecordUnits = 2;
  static constexpr int kSpanRecords = 1;
  static constexpr int kBlockSteps = 0;

  using Decoder = typename WIDENER::Decoder;
  using Places = typename WIDENER::Places;
  using Sums = WgmmaSums<T, N>;

  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    WIDENER::template locate<UNIT>(places, base, decoder);
  }
  __device__ static void load(uint32_t (&a)[4], Places& places, int c, const Decoder& decoder) {
    uint32_t pairs[2][2];
    WIDENER::load(pairs, places, c, decoder);
    a[0] = pairs[0][0];
    a[1] = pairs[1][0];
    a[2] = pairs[0][1];
    a[3] = pairs[1][1];
  }
  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int first_token, int lane,
                               float4 v) {
    store_widened<WIDENER, T>(p, first_row, first_token, lane, v,
                              scales_of_widened<WIDENER>(p, first_row, lane));
  }
};

}  // namespace sparsellm::tca_bme
