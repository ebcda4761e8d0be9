#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/launch.cuh"
#include "kernels/checks.h"
#include "sparse/dense_source.cuh"
#include "sparse/running_totals_cuda.h"
#include "sparse/tca_bme/cuda/record_encode_cuda.h"
#include "sparse/tca_bme/format/record_parts.h"

namespace sparsellm::tca_bme {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kLanes = 32;
constexpr int kWarps = 4;  // of a block, of all kernels whose warps work alone
constexpr RecordLayout kTile{.chunks = kFewChunks, .values = RecordValues::single};

// Of 64 x 64 elements, the smallest record that there is.
struct TileCounts {
  uint16_t nonzeros;
  uint16_t pairs;  // with a nonzero
};

// A warp counts a tile; lane l has the pair of columns 2 l and 2 l + 1 of every row.
__global__ void __launch_bounds__(kWarps* kLanes)
    record_count_kernel(DenseSource w, RecordGrid tiles, TileCounts* counts,
                        unsigned long long* all_nonzeros) {
  const int lane = threadIdx.x % kLanes;
  const int64_t tile = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (tile >= tiles.count()) {
    return;
  }
  const int64_t row = tiles.row_block(tile) * kRecordRows;
  const int64_t column = tiles.column(tile) * kTile.columns() + 2 * lane;
  unsigned nonzeros = 0;
  unsigned pairs = 0;
#pragma unroll 16
  for (int r = 0; r < kRecordRows; ++r) {
    const uint32_t bits = nonzero_bits(load_two(w, row + r, column));
    nonzeros += (bits & 1u) + (bits >> 16);
    pairs += bits != 0 ? 1 : 0;
  }
  nonzeros = __reduce_add_sync(kAllLanes, nonzeros);
  pairs = __reduce_add_sync(kAllLanes, pairs);
  if (lane == 0) {
    counts[tile] = {static_cast<uint16_t>(nonzeros), static_cast<uint16_t>(pairs)};
    atomicAdd(all_nonzeros, static_cast<unsigned long long>(nonzeros));
  }
}

// The sizes of records, in units of 16 bytes, a thread for each.
__global__ void record_size_kernel(RecordLayout layout, RecordGrid grid, RecordGrid tiles,
                                   const TileCounts* counts, uint32_t* sizes) {
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= grid.count()) {
    return;
  }
  const int tiles_in_record = layout.chunks / kFewChunks;
  int bits = 0;
  for (int i = 0; i < tiles_in_record; ++i) {
    const int64_t column = grid.column(r) * tiles_in_record + i;
    if (column < tiles.columns) {
      const TileCounts tile = counts[tiles.index(grid.row_block(r), column)];
      bits += layout.pairs() ? tile.pairs : tile.nonzeros;
    }
  }
  sizes[r] = static_cast<uint32_t>(layout.record_bytes(bits) / kRecordAlignment);
}

// Words of shared memory in which a warp has its 64 rows, in pairs: 4 more after every 8 rows, so
// that the lanes of record_emit_kernel read 32 different banks.
constexpr int kGapWords = 4;
__host__ __device__ constexpr int tile_words(const RecordLayout& layout) {
  return kRecordRows * layout.columns() / 2 + kRecordRows / kLaneRows * kGapWords;
}

// A warp encodes a record. Of each chunk, lane 8 i + 4 par + t has what belongs to i, par and t:
// lanes follow each other as their values do.
template <bool kPairs>
__global__ void __launch_bounds__(kWarps* kLanes)
    record_emit_kernel(DenseSource w, RecordLayout layout, RecordGrid grid, const uint32_t* starts,
                       uint8_t* records) {
  extern __shared__ uint32_t shared[];
  const int lane = threadIdx.x % kLanes;
  const int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (r >= grid.count()) {
    return;
  }
  uint32_t* const tile = shared + threadIdx.x / kLanes * tile_words(layout);
  const int row_words = layout.columns() / 2;
  {
    const int64_t row = grid.row_block(r) * kRecordRows;
    const int64_t column = grid.column(r) * layout.columns() + 2 * lane;
    for (int word = lane; word < row_words; word += kLanes) {
#pragma unroll 16
      for (int i = 0; i < kRecordRows; ++i) {
        tile[i * row_words + i / kLaneRows * kGapWords + word] =
            load_two(w, row + i, column + 2 * (word - lane));
      }
    }
  }
  __syncwarp();

  uint8_t* const record = records + int64_t{starts[r]} * kRecordAlignment;
  auto* const masks = reinterpret_cast<uint16_t*>(record);
  uint16_t* const offsets = masks + layout.mask_bytes() / 2;
  uint16_t* const values = masks + layout.header_bytes() / 2;
  const int i = lane / 8;
  const int par = lane / 4 % 2;
  const int t = lane % 4;
  const uint32_t* const own = tile + (2 * i + par) * (kLaneRows * row_words + kGapWords) + t;
  unsigned done = 0;            // values
  uint32_t mask_words[4] = {};  // of rows g = 2 j and 2 j + 1, in the halves of word j
  for (int chunk = 0; chunk < layout.chunks; ++chunk) {
    uint32_t pairs[kHalves][kLaneRows];
    unsigned count = 0;
#pragma unroll
    for (int p = 0; p < kHalves; ++p) {
#pragma unroll
      for (int g = 0; g < kLaneRows; ++g) {
        const uint32_t pair = own[g * row_words + chunk * (kChunkColumns / 2) + 4 * p];
        const uint32_t bits = nonzero_bits(pair);
        uint32_t in_word;
        if constexpr (kPairs) {
          pairs[p][g] = pair & bits * 0xffffu;
          in_word = (bits != 0 ? 1u : 0u) << (2 * i + p + 8 * (chunk % 2));
          count += bits != 0 ? 2 : 0;
        } else {
          pairs[p][g] = pair;
          in_word = ((bits | bits >> 8) & 0x0101u) << (2 * i + p);
          count += (bits & 1u) + (bits >> 16);
        }
        mask_words[g / 2] |= in_word << 16 * (g % 2);
      }
    }

    unsigned through = count;
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const unsigned before = __shfl_up_sync(kAllLanes, through, distance);
      through += lane >= distance ? before : 0;
    }
    const unsigned first = done + through - count;
    done += __shfl_sync(kAllLanes, through, kLanes - 1);
    offsets[offset_index(chunk, i, par, t)] =
        static_cast<uint16_t>(static_cast<unsigned>(layout.header_bytes()) + 2 * first);

    uint16_t* next = values + first;
#pragma unroll
    for (int p = 0; p < kHalves; ++p) {
#pragma unroll
      for (int g = 0; g < kLaneRows; ++g) {
        const uint32_t bits = nonzero_bits(pairs[p][g]);
        if ((kPairs ? bits : bits & 1u) != 0) {
          *next++ = static_cast<uint16_t>(pairs[p][g]);
        }
        if ((kPairs ? bits : bits >> 16) != 0) {
          *next++ = static_cast<uint16_t>(pairs[p][g] >> 16);
        }
      }
    }

    if (!kPairs || chunk % 2 == 1) {
      uint32_t rows = 0;  // the words of rows 2 i and 2 i + 1
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        mask_words[j] |= __shfl_xor_sync(kAllLanes, mask_words[j], 8);
        mask_words[j] |= __shfl_xor_sync(kAllLanes, mask_words[j], 16);
        rows = j == i ? mask_words[j] : rows;
        mask_words[j] = 0;
      }
      masks[mask_word(layout, chunk, 2 * i, t, par)] = static_cast<uint16_t>(rows);
      masks[mask_word(layout, chunk, 2 * i + 1, t, par)] = static_cast<uint16_t>(rows >> 16);
    }
  }
  const int64_t end = (int64_t{starts[r + 1]} - starts[r]) * (kRecordAlignment / 2);
  for (uint16_t* padding = values + done + lane; padding < masks + end; padding += kLanes) {
    *padding = 0;
  }
}

LaunchShape warps_for(int64_t count, size_t shared_bytes = 0) {
  return {.blocks = dim3(static_cast<unsigned>(ceil_div(count, kWarps))),
          .threads = kWarps * kLanes,
          .shared_bytes = shared_bytes};
}

// Waits for all that has been enqueued.
template <class T>
void read(std::span<T> values, const void* from, const ExecContext& ctx) {
  ctx.cuda->copy(values.data(), from, static_cast<int64_t>(values.size_bytes()), ctx.queue);
}

template <bool kPairs>
void emit(const DenseSource& source, const RecordGrid& grid, const DeviceRecords& made,
          const ExecContext& ctx) {
  const auto shared_bytes =
      static_cast<size_t>(kWarps * tile_words(made.layout)) * sizeof(uint32_t);
  // The most that any layout needs: launches may come from several threads.
  constexpr int kMaxSharedBytes =
      kWarps * tile_words({.chunks = kManyChunks}) * int{sizeof(uint32_t)};
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(record_emit_kernel<kPairs>),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  launch(ctx, record_emit_kernel<kPairs>, warps_for(grid.count(), shared_bytes), source,
         made.layout, grid, static_cast<const uint32_t*>(made.starts.data()),
         static_cast<uint8_t*>(made.records.data()));
}

}  // namespace

DeviceRecords encode_records_cuda(const Tensor& w, std::variant<RecordsFor, RecordLayout> layout,
                                  ExecContext& ctx) {
  check_tensor({"encode", "w"}, w, Elements::activation, {kAnySize, kAnySize}, ctx);
  const int64_t rows = w.size(0);
  const int64_t columns = w.size(1);
  const DenseSource source = dense_source(w);
  const cudaStream_t stream = cuda_queue(ctx).stream;
  const RecordGrid tiles = record_grid(rows, columns, kTile);
  // Freed after the scratch memory, whose destructors wait for the kernels that use both.
  DeviceRecords made;
  const Buffer counts =
      Buffer::scratch(ctx, tiles.count() * int64_t{sizeof(TileCounts)}, "an encoder");
  unsigned long long nonzeros = 0;
  const Buffer total = Buffer::scratch(ctx, sizeof(nonzeros), "an encoder");
  check_cuda(cudaMemsetAsync(total.data(), 0, sizeof(nonzeros), stream));
  launch(ctx, record_count_kernel, warps_for(tiles.count()), source, tiles,
         static_cast<TileCounts*>(counts.data()), static_cast<unsigned long long*>(total.data()));

  read(std::span(&nonzeros, 1), total.data(), ctx);
  made.nonzeros = static_cast<int64_t>(nonzeros);
  const auto* const goal = std::get_if<RecordsFor>(&layout);
  require(starts_hold(rows, columns, made.nonzeros, goal != nullptr ? *goal : RecordsFor::speed),
          "{} nonzeros are more than 32-bit starts of records hold", made.nonzeros);
  made.layout = goal != nullptr ? record_layout_for(rows * columns, made.nonzeros, *goal)
                                : std::get<RecordLayout>(layout);
  const RecordGrid grid = record_grid(rows, columns, made.layout);
  made.starts =
      Buffer(ctx.device, (grid.count() + 1) * int64_t{sizeof(uint32_t)}, "an encoded weight");
  auto* const starts = static_cast<uint32_t*>(made.starts.data());
  check_cuda(cudaMemsetAsync(starts, 0, sizeof(uint32_t), stream));
  constexpr int64_t kThreads = 256;
  launch(ctx, record_size_kernel,
         {.blocks = dim3(static_cast<unsigned>(ceil_div(grid.count(), kThreads))),
          .threads = kThreads},
         made.layout, grid, tiles, static_cast<const TileCounts*>(counts.data()), starts + 1);
  running_totals_cuda(starts + 1, grid.count(), ctx);

  std::vector<uint32_t> all_starts(static_cast<size_t>(grid.count()) + 1);
  read(std::span(all_starts), starts, ctx);
  made.sizes = record_sizes(all_starts, grid);
  made.records =
      Buffer(ctx.device, int64_t{all_starts.back()} * kRecordAlignment, "an encoded weight");
  made.layout.pairs() ? emit<true>(source, grid, made, ctx) : emit<false>(source, grid, made, ctx);
  ctx.cuda->synchronize();
  return made;
}

}  // namespace sparsellm::tca_bme
