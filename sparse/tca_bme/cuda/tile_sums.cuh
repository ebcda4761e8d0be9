#pragma once

#include <cstdint>

namespace sparsellm::tca_bme {

struct NoScales {};

// The sums of a warp for 64 rows and NT tiles of 8 tokens, as mma.m16n8k16 has them: what products
// with values of 16 bits keep (record_product.cuh).
template <int NT>
class TileSums {
 public:
  static constexpr int kTokens = 8 * NT;     // rows of x in shared memory
  static constexpr int kFragments = 4 * NT;  // of four sums a lane
  static constexpr int kMaxThreads = NT <= 2 ? 512 : NT == 4 ? 384 : 256;

  struct XPreparation {  // x is multiplied as it is
    __device__ XPreparation(uint32_t, uint32_t, int, int, int) {}
    __device__ void finish() {}
  };

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums_[m][n][c] = 0.f;
        }
      }
    }
  }
  // What store() takes of the rows of fragment f, requested before its sums are complete.
  template <class Parameters>
  __device__ static NoScales scales(const Parameters&, int /*first_row*/, int /*f*/, int /*lane*/) {
    return {};
  }
  // After the last record of the rows.
  __device__ void finish() {}
  // Fragment m * NT + n: rows from 16 m on, tokens from 8 n on.
  __device__ float4 fragment(int f) const {
    const float(&v)[4] = sums_[f / NT][f % NT];
    return make_float4(v[0], v[1], v[2], v[3]);
  }

 protected:
  float sums_[4][NT][4];
};

}  // namespace sparsellm::tca_bme
