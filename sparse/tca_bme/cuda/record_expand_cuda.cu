#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/base/launch.cuh"
#include "kernels/device/async_copy.cuh"
#include "sparse/dense_rows.cuh"
#include "sparse/tca_bme/cuda/record_expand_cuda.h"
#include "sparse/tca_bme/cuda/record_unit.cuh"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "sparse/tca_bme/quantized/cuda/quantized_expander.cuh"

namespace sparsellm {
namespace {

using tca_bme::ceil_div;
using tca_bme::kChunkColumns;
using tca_bme::kRecordAlignment;
using tca_bme::kRecordRows;
using tca_bme::kUnitAlignment;
using tca_bme::kUnitBytes;
using tca_bme::kUnitChunks;
using tca_bme::kUnitColumns;
using tca_bme::kUnitRowBytes;
using tca_bme::RecordDecoder;
using tca_bme::RecordGrid;
using tca_bme::RecordLayout;
using tca_bme::RecordValues;

constexpr int kStages =
    2;  // one record is copied while another is expanded; a large one takes both
constexpr int kLanesOfRow = kUnitColumns / kLaneElements;
constexpr int kRowsAtOnce = 32 / kLanesOfRow;

struct Parameters {
  const uint8_t* records;
  const uint32_t* starts;
  uint32_t first_record, record_count;  // of whole row blocks
  uint32_t record_columns;
  int64_t first_block;  // of rows
  DenseRows rows;
  const float* scales;  // of rows, if the values have any
  int group;            // columns that share a scale in records, if they do
  int64_t matrix_rows;
  int stage_bytes;  // of shared memory, for a record
};

struct Span {
  uint32_t start = 0, end = 0;  // in units of 16 bytes

  // With the bytes past the values that loads reach.
  __device__ bool fits(const Parameters& p) const {
    return static_cast<int>(end - start) * kRecordAlignment + tca_bme::kPastValues <= p.stage_bytes;
  }
};
__device__ Span span_of(const Parameters& p, uint32_t index) {
  if (index >= p.record_count) {
    return {};
  }
  const uint32_t* const entry = p.starts + p.first_record + index;
  return {__ldg(entry), __ldg(entry + 1)};
}

__device__ void copy_record(const Parameters& p, const Span& span, uint8_t* to, int lane) {
  const uint8_t* const from = p.records + int64_t{span.start} * kRecordAlignment;
  const int bytes = static_cast<int>(span.end - span.start) * kRecordAlignment;
  for (int i = lane * kRecordAlignment; i < bytes; i += 32 * kRecordAlignment) {
    __pipeline_memcpy_async(to + i, from + i, kRecordAlignment);
  }
}

// Records of version 2 are expanded a unit at a time in shared memory, decoded as for a product,
// and whole rows of it, 128 bytes, are written.
template <int CH, bool PAIR, template <bool> class COUNTER>
class UnitExpander {
 public:
  static constexpr int kColumns = CH * kChunkColumns;
  static constexpr int kSharedBytes = kUnitBytes;

  __device__ UnitExpander(uint8_t* unit, int lane, int /*group*/)
      : decoder_(lane),
        unit_(unit),
        to_(shared_address(unit) + tca_bme::unit_lane_offset(lane)),
        lane_(lane) {}

  __device__ void expand(const DenseRows& rows, const float*, int64_t, uint32_t base, int64_t row,
                         int64_t column) const {
#pragma unroll 1
    for (int first = 0; first < CH; first += kUnitChunks) {
      tca_bme::expand_unit(to_, base, first, decoder_);
      __syncwarp();
      store(rows, row, column + first * kChunkColumns);
      __syncwarp();  // before the unit is filled again
    }
  }

 private:
  // Writes the unit, the first element of which is that of `row` and `column` of the matrix.
  __device__ void store(const DenseRows& rows, int64_t row, int64_t column) const {
    const int r = lane_ / kLanesOfRow;
    const int u = lane_ % kLanesOfRow;
    const auto values = [&](int i) {
      const int unit_row = i * kRowsAtOnce + r;
      return *reinterpret_cast<const uint4*>(unit_ + unit_row * kUnitRowBytes +
                                             (u ^ unit_row % 8) * 16);
    };
    if (rows.aligned && row >= rows.begin_row && row + kRecordRows <= rows.end_row &&
        column + kUnitColumns <= rows.columns) {
      uint16_t* const to =
          rows.dense + (row - rows.begin_row + r) * rows.columns + column + u * kLaneElements;
#pragma unroll
      for (int i = 0; i < kRecordRows / kRowsAtOnce; ++i) {
        *reinterpret_cast<uint4*>(to + i * kRowsAtOnce * rows.columns) = values(i);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kRecordRows / kRowsAtOnce; ++i) {
      store_eight(rows, row + i * kRowsAtOnce + r, column + u * kLaneElements, values(i));
    }
  }

  RecordDecoder<CH, PAIR, COUNTER> decoder_;
  uint8_t* unit_;
  uint32_t to_;
  int lane_;
};

// Blocks of one warp, small enough to find room beside those of a product on another stream, expand
// records. Neighbouring blocks begin with neighbouring records, and each goes on gridDim.x records
// further.
template <class EXPANDER>
__global__ void __launch_bounds__(32) record_expand_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(kUnitAlignment) uint8_t shared[];
  const int lane = threadIdx.x;
  uint8_t* const stages = shared + EXPANDER::kSharedBytes;
  const EXPANDER expander(shared, lane, p.group);

  const uint32_t step = gridDim.x;
  uint32_t index = blockIdx.x;
  Span record = span_of(p, index);
  Span next = span_of(p, index + step);
  copy_record(p, record, stages, lane);
  __pipeline_commit();
  uint32_t at = 0;  // of the record in the stages
  for (; index < p.record_count; index += step) {
    // Where neither of two records is large, each has a stage.
    const bool together = record.fits(p) && next.fits(p);
    const uint32_t next_at = together ? p.stage_bytes - at : 0;
    if (together) {
      copy_record(p, next, stages + next_at, lane);
    }
    __pipeline_commit();
    const Span after_next =
        span_of(p, index + 2 * step);  // early, to hide the latency of the table
    __pipeline_wait_prior(1);
    __syncwarp();
    const uint32_t base = shared_address(stages + at);
    const int64_t row = (p.first_block + index / p.record_columns) * kRecordRows;
    const int64_t column = int64_t{index % p.record_columns} * EXPANDER::kColumns;
    expander.expand(p.rows, p.scales, p.matrix_rows, base, row, column);
    __syncwarp();  // before the stage is filled again
    if (!together) {
      copy_record(p, next, stages, lane);
      __pipeline_commit();
    }
    record = next;
    next = after_next;
    at = next_at;
  }
}

using Kernel = void (*)(Parameters);

// A common record fits a stage, the largest all of them.
int stage_bytes_for(uint32_t largest, uint32_t common) {
  return static_cast<int>(
      std::max(tca_bme::record_room(common), tca_bme::record_room(ceil_div(largest, kStages))));
}

// A kernel, and what it takes of shared memory beside its stages.
struct Choice {
  Kernel kernel;
  int shared_bytes;
};
template <class EXPANDER>
Choice choice_of() {
  return {.kernel = &record_expand_kernel<EXPANDER>, .shared_bytes = EXPANDER::kSharedBytes};
}

template <template <bool> class COUNTER>
Choice choice_for(const RecordMatrix& matrix) {
  return matrix.pair ? choice_of<UnitExpander<tca_bme::kManyChunks, true, COUNTER>>()
         : matrix.chunks == tca_bme::kFewChunks
             ? choice_of<UnitExpander<tca_bme::kFewChunks, false, COUNTER>>()
             : choice_of<UnitExpander<tca_bme::kManyChunks, false, COUNTER>>();
}

template <class T, int OFFSETS>
Choice byte_choice(const RecordMatrix& matrix) {
  using Values = tca_bme::QuantizedLayout::Values;
  using tca_bme::ByteWidener;
  using tca_bme::QuantizedExpander;
  return matrix.elements == RecordElements::i8
             ? choice_of<QuantizedExpander<ByteWidener<T, Values::i8, OFFSETS>>>()
             : choice_of<QuantizedExpander<ByteWidener<T, Values::f8, OFFSETS>>>();
}
template <class T>
Choice quantized_choice(const RecordMatrix& matrix) {
  using tca_bme::NibbleWidener;
  using tca_bme::QuantizedExpander;
  const bool dense = matrix.chunk_offsets == 0;
  if (matrix.elements == RecordElements::i4) {
    return dense ? choice_of<QuantizedExpander<NibbleWidener<T, 0>>>()
                 : choice_of<QuantizedExpander<NibbleWidener<T, 8>>>();
  }
  if (dense) {
    constexpr auto kBytes = tca_bme::QuantizedLayout::Values::i8;
    return choice_of<QuantizedExpander<tca_bme::ByteWidener<T, kBytes, 0>>>();
  }
  return matrix.chunk_offsets == 16 ? byte_choice<T, 16>(matrix) : byte_choice<T, 8>(matrix);
}

Choice choice_for(const RecordMatrix& matrix, DType dtype) {
  if (matrix.narrow()) {
    return dtype == DType::f16 ? quantized_choice<__half>(matrix)
                               : quantized_choice<__nv_bfloat16>(matrix);
  }
  return matrix.multistage.byte_products ? choice_for<tca_bme::ByteCounter>(matrix)
                                         : choice_for<tca_bme::BitCounter>(matrix);
}

int32_t max_record_bytes(const RecordMatrix& matrix, const RecordLayout& layout) {
  return matrix.narrow()
             // Those of 4 bits, with any scales, and dense ones are smaller.
             ? tca_bme::QuantizedLayout{.offsets = 16}.max_record_bytes()
             : layout.max_record_bytes();
}

}  // namespace

void record_expand_cuda(const RecordMatrix& matrix, Range rows, void* dense, DType dtype,
                        int multiprocessors, const ExecContext& ctx) {
  const RecordLayout layout{.chunks = matrix.chunks,
                            .values = matrix.pair ? RecordValues::pair : RecordValues::single};
  const RecordGrid grid = record_grid(matrix.rows, matrix.columns, layout);
  const int64_t first_block = rows.begin / kRecordRows;
  const int64_t end_block = ceil_div(rows.begin + rows.count, kRecordRows);
  if (rows.count == 0 || grid.columns == 0) {
    return;
  }
  // A record has several hundred bytes: what the memory of a device holds is far from 2^31.
  const int64_t records = (end_block - first_block) * grid.columns;
  require(grid.count() <= INT32_MAX, "expand: {} records of a {} x {} matrix", grid.count(),
          matrix.rows, matrix.columns);
  const uint32_t most = static_cast<uint32_t>(max_record_bytes(matrix, layout));
  const bool known = matrix.largest_record != 0;
  const int stage_bytes = known ? stage_bytes_for(matrix.largest_record, matrix.common_record)
                                : stage_bytes_for(most, most);
  const Parameters p{.records = matrix.records,
                     .starts = matrix.starts,
                     .first_record = static_cast<uint32_t>(first_block * grid.columns),
                     .record_count = static_cast<uint32_t>(records),
                     .record_columns = static_cast<uint32_t>(grid.columns),
                     .first_block = first_block,
                     .rows = dense_rows(dense, rows.begin, rows.count, matrix.columns),
                     .scales = matrix.scales,
                     .group = matrix.group,
                     .matrix_rows = matrix.rows,
                     .stage_bytes = stage_bytes};
  const auto [kernel, other_bytes] = choice_for(matrix, dtype);
  const int shared_bytes = other_bytes + kStages * stage_bytes;
  // The most that any matrix needs: launches may come from several threads.
  const int max_shared_bytes = other_bytes + kStages * stage_bytes_for(most, most);
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes));
  int blocks = 0;  // of a multiprocessor
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32,
                                                           static_cast<size_t>(shared_bytes)));
  const int64_t max_blocks = int64_t{std::max(blocks, 1)} * multiprocessors;
  launch(ctx, kernel,
         {.blocks = static_cast<unsigned>(std::min(records, max_blocks)),
          .threads = 32,
          .shared_bytes = static_cast<size_t>(shared_bytes)},
         p);
}

}  // namespace sparsellm
