#pragma once

#include <cstdint>

#include "sparse/tca_bme/quantized/cuda/quantized_records.cuh"

// How a CUDA device makes the records of dense_i8 and dense_i4, the same bytes as
// encode_quantized().
namespace sparsellm::tca_bme {

// Four codes of i4 as nibbles of code + 8, in the low halves of bytes.
__device__ inline uint32_t low_nibbles(uint32_t codes) {
  return (codes & 0x0f0f0f0fu) ^ 0x08080808u;
}

// Record blockIdx.x. A block of kEmitThreads.
__device__ inline void emit_dense(const CodeSource& q, const QuantizedLayout& layout,
                                  const RecordGrid& grid, const uint32_t* starts,
                                  uint8_t* records) {
  __shared__ uint16_t scales[4 * kRecordRows];
  constexpr int kWord = sizeof(uint32_t);
  constexpr int kUnitColumns = 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t r = blockIdx.x;
  const int64_t row = grid.row_block(r) * kRecordRows;
  const int64_t column = grid.column(r) * QuantizedLayout::kColumns;
  auto* const record = reinterpret_cast<uint32_t*>(records + int64_t{starts[r]} * kRecordAlignment);
  uint32_t* const values = record + layout.header_bytes() / kWord;
  constexpr int kUnits = kRecordRows * QuantizedLayout::kColumns / kUnitColumns;
  constexpr int kRowUnits = QuantizedLayout::kColumns / kUnitColumns;
  for (int unit = thread; unit < kUnits; unit += kEmitThreads) {
    const int32_t own_row = unit / kRowUnits;
    const int32_t own_column = unit % kRowUnits * kUnitColumns;
    uint32_t* const to = values + dense_values_at(layout, own_row, own_column) / kWord;
    const uint32_t codes = load_unit(q, row + own_row, column + own_column);
    if (!layout.nibbles()) {
      *to = codes;
    } else if (!is_high_nibble(own_column)) {
      const uint32_t next =
          load_unit(q, row + own_row, column + own_column + QuantizedLayout::kChunkSide);
      *to = low_nibbles(codes) | low_nibbles(next) << 4;
    }
  }
  if (layout.nibbles()) {
    take_scales(q, layout, row, column, scales);
    __syncthreads();
    for (int i = thread; i < layout.header_bytes() / kWord; i += kEmitThreads) {
      record[i] = two_words(scales + 2 * i);
    }
  }
}

}  // namespace sparsellm::tca_bme
