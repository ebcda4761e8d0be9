#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/base/cuda_state.cuh"
#include "sparse/tca_bme/record_expand_cuda.h"
#include "sparse/tca_bme/record_layout.h"

namespace sparsellm {
namespace {

using tca_bme::ceil_div;
using tca_bme::kChunkColumns;
using tca_bme::kChunkOffsets;
using tca_bme::kLaneRows;
using tca_bme::kMaskWords;
using tca_bme::kRecordAlignment;
using tca_bme::kRecordRows;
using tca_bme::kRowTiles;
using tca_bme::RecordGrid;
using tca_bme::RecordLayout;
using tca_bme::RecordValues;

constexpr int kWarps = 4;  // of a block; each has a record of its own
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kHalfColumns = 8;  // of a chunk: what a lane writes at once, 16 bytes

struct Parameters {
  const uint8_t* records;
  const uint32_t* starts;
  uint16_t* dense;
  RecordGrid grid;
  RecordLayout layout;
  int64_t first_block;  // of rows
  int64_t end_block;
  int64_t begin_row;
  int64_t end_row;
  int64_t columns;
  int slot_bytes;  // of shared memory, for a record
  bool aligned;    // every row of `dense`, to 16 bytes
};

// Bits 0, 2, 4 and 6 of `bits`, which has no others, as the lowest bits of the four bytes. What the
// product adds at other places stays there: where two terms meet, the carry is not passed on.
__device__ uint32_t spread(uint32_t bits) { return bits * 0x41041u & 0x01010101u; }

// The numbers of values that lie before a lane's own among those of one par and t, for each i in
// one byte: all of the first half of the chunk's columns, if the lane has the second, and those of
// the rows above. `own`: the numbers of the lane's values. Lanes 0..7 of 8 have the rows g.
__device__ uint32_t values_before(uint32_t own, int lane, bool second_half) {
  uint32_t through = own;
#pragma unroll
  for (int distance = 1; distance < kLaneRows; distance *= 2) {
    const uint32_t above = __shfl_up_sync(kAllLanes, through, distance, kLaneRows);
    through += lane % kLaneRows >= distance ? above : 0;
  }
  // The last row of the first half.
  const uint32_t first_half = __shfl_sync(kAllLanes, through, (lane & 16) + kLaneRows - 1);
  return through - own + (second_half ? first_half : 0);
}

__device__ uint32_t load_u16(const uint8_t* from) {
  return *reinterpret_cast<const uint16_t*>(from);
}

__device__ uint32_t byte_of(uint32_t bytes, int index) { return bytes >> 8 * index & 0xffu; }

__device__ void store_eight(const Parameters& p, int64_t row, int64_t column, const uint4& values) {
  if (row < p.begin_row || row >= p.end_row || column >= p.columns) {
    return;
  }
  uint16_t* const to = p.dense + (row - p.begin_row) * p.columns + column;
  if (p.aligned) {  // then the columns are a multiple of 8
    *reinterpret_cast<uint4*>(to) = values;
    return;
  }
  const uint32_t words[] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < kHalfColumns; ++i) {
    if (column + i < p.columns) {
      to[i] = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
    }
  }
}

// Expands a record by one warp, in its slot.
template <bool kPairs>
__device__ void expand_record(const Parameters& p, int64_t row_block, int64_t record_column,
                              uint8_t* record, int lane) {
  {
    const int64_t r = p.grid.index(row_block, record_column);
    const uint32_t start = p.starts[r];
    const int bytes = static_cast<int>(p.starts[r + 1] - start) * kRecordAlignment;
    const uint8_t* const from = p.records + int64_t{start} * kRecordAlignment;
    for (int i = lane * kRecordAlignment; i < bytes; i += 32 * kRecordAlignment) {
      __pipeline_memcpy_async(record + i, from + i, kRecordAlignment);
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
  }

  const int g = lane % kLaneRows;
  const int half = lane / kLaneRows % 2;
  for (int chunk = lane / 16; chunk < p.layout.chunks; chunk += 2) {
    const uint8_t* const masks = record + (kPairs ? chunk / 2 : chunk) * (kMaskWords * 2) + g * 16;
    const uint4 mask_words = *reinterpret_cast<const uint4*>(masks);
    const auto* const offset_words = reinterpret_cast<const uint4*>(record + p.layout.mask_bytes() +
                                                                    chunk * (kChunkOffsets * 2));
    const uint32_t words[] = {mask_words.x, mask_words.y, mask_words.z, mask_words.w};
    const int64_t row = row_block * kRecordRows + g;
    const int64_t column =
        record_column * p.layout.columns() + chunk * kChunkColumns + half * kHalfColumns;
#pragma unroll
    for (int par = 0; par < 2; ++par) {
      uint32_t bits[4];    // of t: bit 2 i, and of the second element bit 2 i + 8
      uint32_t before[4];  // of t, in byte i
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t word = words[t] >> 16 * par >> half;
        if constexpr (kPairs) {
          bits[t] = word >> 8 * (chunk % 2) & 0x55u;
          before[t] = values_before(spread(bits[t]), lane, half != 0);
        } else {
          bits[t] = word & 0x5555u;
          const uint32_t first = spread(bits[t] & 0x55u);
          // That of the second element has the first one before it.
          before[t] = values_before(first + spread(bits[t] >> 8), lane, half != 0) + first;
        }
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        uint32_t values[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const auto* const four = reinterpret_cast<const uint32_t*>(offset_words + t);
          const uint32_t offset = four[i] >> 16 * par & 0xffffu;
          if constexpr (kPairs) {
            values[t] = 0;
            if ((bits[t] >> 2 * i & 1u) != 0) {
              values[t] =
                  *reinterpret_cast<const uint32_t*>(record + offset + 4 * byte_of(before[t], i));
            }
          } else {
            const uint8_t* const second = record + offset + 2 * byte_of(before[t], i);
            // An element takes bytes 0 and 1 of what was loaded, or the zeros in bytes 2 and 3.
            const uint32_t z = bits[t] >> 2 * i & 0x0101u;
            values[t] = __byte_perm(load_u16(second - 2), load_u16(second), 0x7632u - 0x22u * z);
          }
        }
        store_eight(p, row + 16 * i + 8 * par, column,
                    make_uint4(values[0], values[1], values[2], values[3]));
      }
    }
  }
}

// A warp expands one record. Lane g + 8 p + 16 c of it has rows g, 8 + g, ... and the columns of
// half p of every second chunk from chunk c on, so that the lanes of a row write 64 bytes without a
// gap. The four pairs of a lane in a row are those of t = 0..3: it counts the bits before its own
// with its fellows of the same half and chunk, for all i at once in the bytes of a register.
// Shared memory: a slot for each warp, 16 bytes longer than the largest record, since what is
// loaded where a bit is missing may lie behind the values.
template <bool kPairs>
__global__ void __launch_bounds__(kWarps * 32)
    record_expand_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) uint8_t shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t record_column = int64_t{blockIdx.x} * kWarps + warp;
  if (record_column >= p.grid.columns) {
    return;
  }
  uint8_t* const record = shared + warp * p.slot_bytes;
  for (int64_t row_block = p.first_block + blockIdx.y; row_block < p.end_block;
       row_block += gridDim.y) {
    expand_record<kPairs>(p, row_block, record_column, record, lane);
    __syncwarp();  // before the slot is filled again
  }
}

}  // namespace

void record_expand_cuda(const RecordMatrix& matrix, Range rows, void* dense, cudaStream_t stream) {
  const RecordLayout layout{.chunks = matrix.chunks,
                            .values = matrix.pair ? RecordValues::pair : RecordValues::single};
  const RecordGrid grid = record_grid(matrix.rows, matrix.columns, layout);
  const int64_t first_block = rows.begin / kRecordRows;
  const int64_t end_block = ceil_div(rows.begin + rows.count, kRecordRows);
  if (rows.count == 0 || grid.columns == 0) {
    return;
  }
  const int largest = matrix.largest_record != 0 ? static_cast<int>(matrix.largest_record)
                                                 : layout.most_record_bytes();
  const Parameters p{.records = matrix.records,
                     .starts = matrix.starts,
                     .dense = static_cast<uint16_t*>(dense),
                     .grid = grid,
                     .layout = layout,
                     .first_block = first_block,
                     .end_block = end_block,
                     .begin_row = rows.begin,
                     .end_row = rows.begin + rows.count,
                     .columns = matrix.columns,
                     .slot_bytes = largest + kRecordAlignment,
                     .aligned = matrix.columns % kHalfColumns == 0 &&
                                reinterpret_cast<uintptr_t>(dense) % 16 == 0};
  const auto kernel = matrix.pair ? record_expand_kernel<true> : record_expand_kernel<false>;
  const int shared_bytes = kWarps * p.slot_bytes;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  cudaLaunchConfig_t config{};
  constexpr int64_t kMostBlocks = 65535;  // along y
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(grid.columns, kWarps)),
                        static_cast<unsigned>(std::min(end_block - first_block, kMostBlocks)));
  config.blockDim = kWarps * 32;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, p));
}

}  // namespace sparsellm
