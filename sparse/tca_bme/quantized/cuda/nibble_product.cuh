#pragma once

#include "sparse/tca_bme/quantized/cuda/dense_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/integer_product.cuh"
#include "sparse/tca_bme/quantized/cuda/nibble_scales.cuh"

namespace sparsellm::tca_bme {

// The product of a record of i4 in integers. All values are 8 too large, so one
// more product, of eights with x, says what to subtract: exactly, in integers.
template <class T, int OFFSETS, int NT>
class NibbleProduct : public IntegerProduct<T, NT> {
  using Base = IntegerProduct<T, NT>;

 public:
  __device__ NibbleProduct(int lane, uint32_t x, uint32_t pitch, int group)
      : Base(lane, x, pitch), decoder_(lane, group), scales_(lane, group) {}

  __device__ void clear() {
    Base::clear();
    clear_excess();
  }
  __device__ void multiply(uint32_t base, int k) {
    constexpr uint32_t kEights = 0x08080808u;
    const uint32_t eights[4] = {kEights, kEights, kEights, kEights};
    uint32_t b[Base::kLoads][4];
    decode_nibbles(base, decoder_, [&](int c, int j, const uint32_t(&a)[4]) {
      if (j == 0 && c % Base::kChunksOfX == 0) {
        this->load_x(b, k, c);
      }
      if (j == 0 && c % 2 == 0) {
        Base::multiply(excess_, eights, b, c);
      }
      Base::multiply(this->sums_[2 * (c & 1) + j], a, b, c);
      if (j == 1 && c % 2 == 1 && scales_.ends_group(c / 2)) {
        __half2 scales[4];
        scales_.load(scales, base, c / 2);
        this->add_sums(
            k,
            [&](int m, int h) { return h == 0 ? __low2float(scales[m]) : __high2float(scales[m]); },
            [&](int n) { return 256 * excess_[n][0] + excess_[n][1]; });
        clear_excess();
      }
    });
  }
  __device__ void finish() {}
  template <class Parameters>
  __device__ static NoScales scales(const Parameters&, int /*first_row*/, int /*f*/, int /*lane*/) {
    return {};
  }
  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int f, int lane, float4 sums,
                               NoScales) {
    store_totals<T, NT>(p, first_row, f, lane, sums, [](int) { return 1.f; });
  }

 private:
  __device__ void clear_excess() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        excess_[n][c] = 0;
      }
    }
  }

  NibbleDecoder<OFFSETS> decoder_;
  NibbleScales<OFFSETS> scales_;
  int excess_[NT][4];
};

}  // namespace sparsellm::tca_bme
