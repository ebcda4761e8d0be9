#pragma once

#include "sparse/tca_bme/quantized/cuda/dense_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/integer_product.cuh"
#include "sparse/tca_bme/quantized/cuda/row_scales.cuh"

namespace sparsellm::tca_bme {

// The product of a record of i8 in integers. OFFSETS: of a chunk, 0 of a dense record.
template <class T, int OFFSETS, int NT>
class ByteProduct : public IntegerProduct<T, NT> {
  using Base = IntegerProduct<T, NT>;

 public:
  __device__ ByteProduct(int lane, uint32_t x, uint32_t pitch, int /*group*/)
      : Base(lane, x, pitch), decoder_(lane) {}

  __device__ void multiply(uint32_t base, int k) {
    uint32_t b[Base::kLoads][4];
    decode_bytes(base, decoder_, [&](int c, int j, const uint32_t(&a)[4]) {
      if (j == 0 && c % Base::kChunksOfX == 0) {
        this->load_x(b, k, c);
      }
      Base::multiply(this->sums_[2 * (c & 1) + j], a, b, c);
    });
    last_ = k;
    if (k % Base::kRecordsOfBlock == Base::kRecordsOfBlock - 1) {
      add_block();
    }
  }
  __device__ void finish() {
    if (last_ % Base::kRecordsOfBlock != Base::kRecordsOfBlock - 1) {
      add_block();
    }
  }
  using Scales = RowScales<Base::kRowsOfFragment>;
  template <class Parameters>
  __device__ static Scales scales(const Parameters& p, int first_row, int f, int lane) {
    return Scales(p, first_row_of<NT>(first_row, f, lane));
  }
  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int f, int lane, float4 sums,
                               const Scales& scales) {
    store_totals<T, NT>(p, first_row, f, lane, sums, [&](int i) { return scales.of[i]; });
  }

 private:
  __device__ void add_block() {
    this->add_sums(
        last_, [](int, int) { return 1.f; }, [](int) { return 0; });
  }

  QuantizedDecoder<OFFSETS> decoder_;
  int last_ = 0;  // record column that was multiplied
};

}  // namespace sparsellm::tca_bme
