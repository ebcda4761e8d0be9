#pragma once

#include <cstdint>

#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/record_unit.cuh"
#include "sparse/tca_bme/cuda/record_workspace.h"

namespace sparsellm::tca_bme {

// Sums of a warpgroup's 64 rows and N tokens, in f32.
template <class T, int N>
class WgmmaSums {
 public:
  __device__ explicit WgmmaSums(uint32_t /*totals*/) {}
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kProducts * kProductTokens / 2; ++i) {
      sums_[i * 2 / kProductTokens][i % (kProductTokens / 2)] = 0;
    }
  }
  // Product c of a unit; `b` describes its rows of x.
  __device__ void multiply(const uint32_t (&a)[4], uint32_t b, int c) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      wgmma<T>(sums_[i], a, b + (i * kProductTokens * 128 + c * 32) / 16);
    }
  }
  // After all of them have ended.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
#pragma unroll
      for (int j = 0; j < kProductTokens / 2; ++j) {
        asm volatile("" : "+f"(sums_[i][j]));
      }
    }
  }
  // Of the warp's 16 rows, tokens from 8 f on.
  __device__ float4 fragment(int f) const {
    const float(&v)[kProductTokens / 2] = sums_[f * 8 / kProductTokens];
    const int i = f * 8 % kProductTokens / 2;
    return make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
  }

 private:
  static constexpr int kProducts = N == 256 ? 2 : 1;  // of a chunk
  static constexpr int kProductTokens = N / kProducts;

  float sums_[kProducts][kProductTokens / 2];
};

// What record_wgmma_kernel needs to know of how a warpgroup multiplies a record with x (PRODUCT).
// This one is for version 2: values of 16 bits, for tiles of N tokens. A unit is what a row of x of
// 128 bytes is multiplied with, in four products.
template <class T, int N, int CH, bool PAIR>
struct WgmmaProduct {
  static_assert(!PAIR || CH == 8);
  using Element = T;  // of x and y
  static constexpr int kTokens = N;
  static constexpr int kXRows = N;                     // of a unit
  static constexpr int kConsumers = consumers_for(N);  // warpgroups
  static constexpr int kRecordUnits = CH / kUnitChunks;
  static constexpr int kSpanRecords = 1;  // what a part of the columns is a multiple of
  static constexpr int kBlockSteps = 0;   // after which sums are added to totals

  using Decoder = TileDecoder<CH, PAIR>;
  using Places = TilePlaces;
  // The values of a unit of the record at `base`, and those of product c of them.
  template <int UNIT>
  __device__ static void locate(Places& places, uint32_t base, const Decoder& decoder) {
    locate_tiles(places, base, UNIT * kUnitChunks, decoder);
  }
  __device__ static void load(uint32_t (&a)[4], const Places& places, int c,
                              const Decoder& decoder) {
    load_values(a, places, c, decoder);
  }

  using Sums = WgmmaSums<T, N>;

  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int first_token, int lane,
                               float4 v) {
    store_fragment<T>(p, first_row, first_token, lane, v);
  }
};

}  // namespace sparsellm::tca_bme
