#pragma once

#include <cstdint>

#include "sparse/tca_bme/quantized/quantized_order.h"

// How a CUDA device makes the records of version 3, the same bytes as encode_quantized().
namespace sparsellm::tca_bme {

// Codes and scales in the memory of a device.
struct CodeSource {
  const int8_t* codes;  // [rows, columns]
  const float* scales;  // of i4: [rows, groups of columns]
  int64_t rows;
  int64_t columns;
  bool aligned;       // units, to 4 bytes
  bool signed_zeros;  // of f8: -128 is a zero, too
};

// The codes of four columns of a row, the first of which is a multiple of 4; 0 outside of the
// matrix.
__device__ inline uint32_t load_unit(const CodeSource& q, int64_t row, int64_t column) {
  if (row >= q.rows || column >= q.columns) {
    return 0;
  }
  const int8_t* const first = q.codes + row * q.columns + column;
  if (q.aligned) {  // then the columns are a multiple of 4
    return *reinterpret_cast<const uint32_t*>(first);
  }
  uint32_t codes = 0;
  for (int k = 0; k < 4; ++k) {
    if (column + k < q.columns) {
      codes |= static_cast<uint32_t>(static_cast<uint8_t>(first[k])) << 8 * k;
    }
  }
  return codes;
}

// The highest bit of each byte: whether the code is stored.
__device__ inline uint32_t stored_codes(const CodeSource& q, uint32_t codes) {
  constexpr uint32_t kMagnitudes = 0x7f7f7f7f;
  const uint32_t signs = q.signed_zeros ? 0 : codes;
  // The sum carries into the highest bit of a byte unless the others are 0, and no further.
  return (((codes & kMagnitudes) + kMagnitudes) | signs) & ~kMagnitudes;
}

constexpr unsigned kLanesOfWarp = 0xffffffffu;
constexpr int kWarpSize = 32;
constexpr int kCountWarps = 4;  // of a block

// A warp counts the bits of a record; lane l has the columns 4 l to 4 l + 3 of every row. A block
// of 32 * kCountWarps.
__device__ inline void count_quantized(const CodeSource& q, const RecordGrid& grid, uint32_t* bits,
                                       unsigned long long* all_bits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t r = int64_t{blockIdx.x} * kCountWarps + threadIdx.x / kWarpSize;
  if (r >= grid.count()) {
    return;
  }
  const int64_t row = grid.row_block(r) * kRecordRows;
  const int64_t column = grid.column(r) * QuantizedLayout::kColumns + 4 * lane;
  unsigned count = 0;
  for (int i = 0; i < kRecordRows; ++i) {
    count += static_cast<unsigned>(__popc(stored_codes(q, load_unit(q, row + i, column))));
  }
  count = __reduce_add_sync(kLanesOfWarp, count);
  if (lane == 0) {
    bits[r] = count;
    atomicAdd(all_bits, static_cast<unsigned long long>(count));
  }
}

// A block encodes a record, a warp each of its chunks: a lane has eight units whose values follow
// each other, and those of the lane before.
constexpr int kEmitThreads = QuantizedLayout::kChunks * kWarpSize;
constexpr int kLaneUnits = kUnitsOfChunk / kWarpSize;

struct EmitShared {
  uint32_t masks[QuantizedLayout::kChunks * kMaskWords / 2];
  uint16_t offsets[QuantizedLayout::kChunks * 16];
  uint16_t scales[4 * kRecordRows];
  uint8_t values[kRecordRows * QuantizedLayout::kColumns];
  unsigned counts[QuantizedLayout::kChunks];
};

__device__ inline uint32_t two_words(const uint16_t* words) {
  return words[0] | static_cast<uint32_t>(words[1]) << 16;
}

// The i-th four bytes of `count` values; 0 beyond them.
__device__ inline uint32_t packed_bytes(const uint8_t* values, int i, int count) {
  uint32_t bytes = 0;
  for (int k = 0; k < 4; ++k) {
    const int at = 4 * i + k;
    bytes |= at < count ? static_cast<uint32_t>(values[at]) << 8 * k : 0u;
  }
  return bytes;
}
__device__ inline uint32_t packed_nibbles(const uint8_t* values, int i, int count) {
  uint32_t nibbles = 0;
  for (int k = 0; k < 8; ++k) {
    const int at = 8 * i + k;
    nibbles |= at < count ? ((values[at] + 8u) & 15u) << 4 * k : 0u;
  }
  return nibbles;
}

// Of a positive number of f16.
__device__ inline uint32_t half_bits(float number) {
  constexpr float kLeastNormal = 0x1p-14f;
  return number < kLeastNormal ? static_cast<uint32_t>(__fmul_rn(number, 0x1p24f))
                               : (__float_as_uint(number) - 0x38000000u) >> 13;
}

// The scales of a record of i4, as f16; 1 outside of the matrix.
__device__ inline void take_scales(const CodeSource& q, const QuantizedLayout& layout, int64_t row,
                                   int64_t column, uint16_t* scales) {
  constexpr uint32_t kOne = 0x3c00;
  const int64_t groups = ceil_div(q.columns, layout.group);
  for (int i = static_cast<int>(threadIdx.x); i < layout.groups() * kRecordRows;
       i += kEmitThreads) {
    const int own_row = i % kRecordRows;
    const int64_t group = column / layout.group + i / kRecordRows;
    const bool inside = row + own_row < q.rows && group < groups;
    scales[quantized_scale_index(i / kRecordRows, own_row)] = static_cast<uint16_t>(
        inside ? half_bits(q.scales[(row + own_row) * groups + group]) : kOne);
  }
}

// Record blockIdx.x. A block of kEmitThreads.
__device__ inline void emit_quantized(const CodeSource& q, const QuantizedLayout& layout,
                                      const RecordGrid& grid, const uint32_t* starts,
                                      uint8_t* records) {
  __shared__ EmitShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int chunk = thread / kWarpSize;
  const int64_t r = blockIdx.x;
  const int64_t row = grid.row_block(r) * kRecordRows;
  const int64_t column = grid.column(r) * QuantizedLayout::kColumns;
  constexpr int kMaskPairs = QuantizedLayout::kChunks * kMaskWords / 2;
  static_assert(kMaskPairs == kEmitThreads, "a thread clears, and stores, a pair of words");
  shared.masks[thread] = 0;
  __syncthreads();

  uint32_t codes[kLaneUnits];
  unsigned count = 0;
#pragma unroll
  for (int u = 0; u < kLaneUnits; ++u) {
    const QuantizedUnit unit = quantized_unit(layout, lane * kLaneUnits + u);
    codes[u] = load_unit(q, row + chunk % 2 * QuantizedLayout::kChunkSide + unit.row(),
                         column + chunk / 2 * QuantizedLayout::kChunkSide + unit.column());
    const uint32_t stored = stored_codes(q, codes[u]);
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      bits |= (stored >> (8 * k + 7) & 1u) << unit.bit(k);
    }
    count += static_cast<unsigned>(__popc(bits));
    const int word = unit.word(chunk);
    atomicOr(&shared.masks[word / 2], bits << 16 * (word % 2));
  }
  unsigned through = count;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const unsigned before = __shfl_up_sync(kLanesOfWarp, through, distance);
    through += lane >= distance ? before : 0;
  }
  if (lane == kWarpSize - 1) {
    shared.counts[chunk] = through;
  }
  __syncthreads();

  unsigned next = through - count;  // of all values, the first of the lane
  int all = 0;
  for (int i = 0; i < QuantizedLayout::kChunks; ++i) {
    next += i < chunk ? shared.counts[i] : 0;
    all += static_cast<int>(shared.counts[i]);
  }
  const int run_lanes = kWarpSize / layout.offsets;
  if (lane % run_lanes == 0) {
    const int first = layout.header_bytes() * (layout.nibbles() ? 2 : 1);
    shared.offsets[quantized_offset_of_run(layout, chunk, lane / run_lanes)] =
        static_cast<uint16_t>(static_cast<unsigned>(first) + next);
  }
#pragma unroll
  for (int u = 0; u < kLaneUnits; ++u) {
    const uint32_t stored = stored_codes(q, codes[u]);
    for (int k = 0; k < 4; ++k) {
      if ((stored >> (8 * k + 7) & 1u) != 0) {
        shared.values[next++] = static_cast<uint8_t>(codes[u] >> 8 * k);
      }
    }
  }
  if (layout.nibbles()) {
    take_scales(q, layout, row, column, shared.scales);
  }
  __syncthreads();

  auto* const record = reinterpret_cast<uint32_t*>(records + int64_t{starts[r]} * kRecordAlignment);
  constexpr int kWord = sizeof(uint32_t);
  const int offsets_begin = layout.mask_bytes() / kWord;
  const int scales_begin = offsets_begin + layout.offset_bytes() / kWord;
  const int values_begin = layout.header_bytes() / kWord;
  const int end = static_cast<int>(starts[r + 1] - starts[r]) * (kRecordAlignment / kWord);
  record[thread] = shared.masks[thread];
  for (int i = offsets_begin + thread; i < end; i += kEmitThreads) {
    if (i < scales_begin) {
      record[i] = two_words(shared.offsets + 2 * (i - offsets_begin));
    } else if (i < values_begin) {
      record[i] = two_words(shared.scales + 2 * (i - scales_begin));
    } else if (layout.nibbles()) {
      record[i] = packed_nibbles(shared.values, i - values_begin, all);
    } else {
      record[i] = packed_bytes(shared.values, i - values_begin, all);
    }
  }
}

}  // namespace sparsellm::tca_bme
