#include "kernels/base/error.h"
#include "kernels/base/launch.cuh"
#include "sparse/dense_source.cuh"
#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/general_sparse/bits/row_counts.h"
#include "sparse/general_sparse/cuda/nonzeros_cuda.h"
#include "sparse/general_sparse/cuda/word_bits.cuh"
#include "sparse/running_totals_cuda.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kCountLanes = 32;
constexpr int kBitsWarps = 4;      // of a block
constexpr int kCountThreads = 64;  // few, so that blocks are spread over the multiprocessors
constexpr int kChunkThreads = 256;
constexpr int kMostChunkGroups = 4096;  // of a window
constexpr unsigned kWholeWarp = 0xffffffffu;

// A warp makes 32 words of a row; lane l keeps word l. Columns of a ballot are side by side.
__global__ void __launch_bounds__(kBitsWarps* kCountLanes)
    nonzero_bits_kernel(DenseSource w, int64_t row_words, int64_t row_warps, uint64_t* words) {
  const int lane = threadIdx.x % kCountLanes;
  const int64_t warp = int64_t{blockIdx.x} * kBitsWarps + threadIdx.x / kCountLanes;
  const int64_t row = warp / row_warps;
  if (row >= w.rows) {
    return;
  }
  const int64_t first_word = warp % row_warps * kCountLanes;
  const uint16_t* const elements = w.data + row * w.stride;
  const auto is_nonzero = [&](int64_t column) {
    return column < w.columns && (elements[column] & 0x7fffu) != 0;
  };
  uint64_t mine = 0;
#pragma unroll 8
  for (int i = 0; i < kCountLanes; ++i) {
    const int64_t column = (first_word + i) * kBitsOfWord + lane;
    const unsigned low = __ballot_sync(kWholeWarp, is_nonzero(column));
    const unsigned high = __ballot_sync(kWholeWarp, is_nonzero(column + kCountLanes));
    mine = i == lane ? uint64_t{high} << kCountLanes | low : mine;
  }
  if (first_word + lane < row_words) {
    words[row * row_words + first_word + lane] = mine;
  }
}

__device__ void add_of_warp(unsigned long long value, unsigned long long* total) {
  for (int distance = kCountLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  if (threadIdx.x % kCountLanes == 0 && value != 0) {
    atomicAdd(total, value);
  }
}

// A thread counts kMostBlockRows rows.
__global__ void __launch_bounds__(kCountThreads)
    nonzero_sums_kernel(RowBits m, NonzeroSums* totals) {
  const int64_t first = (int64_t{blockIdx.x} * kCountThreads + threadIdx.x) * kMostBlockRows;
  NonzeroSums sums;
  if (first < m.rows) {
    for (int64_t row = first; row < m.rows && row < first + kMostBlockRows; ++row) {
      add_row<WordBits>(m, row, sums);
    }
    add_blocks<WordBits>(m, first, sums);
  }
  add_of_warp(sums.nonzeros, &totals->nonzeros);
  add_of_warp(sums.gaps, &totals->gaps);
  add_of_warp(sums.gap_sum, &totals->gap_sum);
  add_of_warp(sums.bridges, &totals->bridges);
  add_of_warp(sums.first_bridges, &totals->first_bridges);
  for (int i = 0; i < 3; ++i) {
    add_of_warp(sums.blocks[i], &totals->blocks[i]);
  }
}

struct EntryCount {
  RowBits m;
  ChunkGrid grid;
  int shared_rows;
  int most_difference;  // 0: gaps are not bridged
};

// A thread counts the entries of a group in a panel. `lengths` has them by chunk and by the number
// of the group in it.
__global__ void __launch_bounds__(kCountThreads)
    entry_count_kernel(EntryCount p, uint32_t* lengths) {
  const int64_t thread = int64_t{blockIdx.x} * kCountThreads + threadIdx.x;
  if (thread < p.grid.places()) {
    const int64_t group = thread % p.grid.groups();
    const Chunk chunk = p.grid.chunk(group / p.grid.window_groups(), thread / p.grid.groups());
    lengths[chunk.first_place + group - chunk.first_group] =
        count_entries<WordBits>(group_bits(p.m, p.shared_rows, chunk, group), p.most_difference);
  }
}

// A block sorts the groups of a chunk: the place of each is the number of those before it. Then it
// is known how many units each slice has, which is as long as its first group.
__global__ void __launch_bounds__(kChunkThreads)
    chunk_arrange_kernel(ChunkGrid grid, int interleave, int vector, const uint32_t* lengths,
                         uint32_t* slice_units, uint16_t* row_order,
                         unsigned long long* total_units) {
  __shared__ uint32_t by_group[kMostChunkGroups];
  __shared__ uint32_t by_place[kMostChunkGroups];
  const Chunk chunk = grid.chunk(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const auto groups = static_cast<int>(chunk.groups);
  for (int group = thread; group < groups; group += kChunkThreads) {
    by_group[group] = lengths[chunk.first_place + group];
  }
  __syncthreads();
  for (int group = thread; group < groups; group += kChunkThreads) {
    const uint32_t length = by_group[group];
    int place = 0;
    for (int other = 0; other < groups; ++other) {
      place += by_group[other] > length || (by_group[other] == length && other < group) ? 1 : 0;
    }
    by_place[place] = length;
    row_order[chunk.first_place + place] = static_cast<uint16_t>(group);
  }
  __syncthreads();
  unsigned long long units = 0;
  for (int slice = thread; slice < chunk.slices; slice += kChunkThreads) {
    const auto mine = static_cast<uint32_t>(ceil_div(by_place[slice * interleave], vector));
    slice_units[chunk.first_slice + slice] = mine;
    units += mine;
  }
  add_of_warp(units, total_units);
}

unsigned blocks_for(int64_t count, int64_t each, const char* what) {
  const int64_t blocks = ceil_div(count, each);
  require(blocks <= INT32_MAX, "encode: {} {} are more than a launch has", count, what);
  return static_cast<unsigned>(blocks);
}

template <class T>
Buffer zeroed_scratch(const ExecContext& ctx) {
  Buffer buffer = Buffer::scratch(ctx, sizeof(T), "an encoder");
  check_cuda(cudaMemsetAsync(buffer.data(), 0, sizeof(T), cuda_queue(ctx).stream));
  return buffer;
}

template <class T>
T read_back(const Buffer& buffer, const ExecContext& ctx) {
  T value{};
  ctx.cuda->copy(&value, buffer.data(), sizeof(T), ctx.queue);
  return value;
}

}  // namespace

DeviceNonzeros nonzeros_cuda(const Tensor& w, const ExecContext& ctx) {
  DeviceNonzeros m{.rows = w.size(0), .columns = w.size(1)};
  m.row_words = ceil_div(m.columns, kBitsOfWord);
  m.words = Buffer::scratch(ctx, m.rows * m.row_words * int64_t{sizeof(uint64_t)}, "an encoder");
  const int64_t row_warps = ceil_div(m.row_words, kCountLanes);
  launch(ctx, nonzero_bits_kernel,
         {.blocks = blocks_for(m.rows * row_warps, kBitsWarps, "parts of rows"),
          .threads = kBitsWarps * kCountLanes},
         dense_source(w), m.row_words, row_warps, static_cast<uint64_t*>(m.words.data()));
  return m;
}

RowBits row_bits_of(const DeviceNonzeros& m) {
  return {.words = static_cast<const uint64_t*>(m.words.data()),
          .rows = m.rows,
          .columns = m.columns,
          .row_words = m.row_words};
}

RowStatistics row_statistics_cuda(const DeviceNonzeros& m, const ExecContext& ctx) {
  const Buffer totals = zeroed_scratch<NonzeroSums>(ctx);
  launch(ctx, nonzero_sums_kernel,
         {.blocks = blocks_for(m.rows, int64_t{kCountThreads} * kMostBlockRows, "rows"),
          .threads = kCountThreads},
         row_bits_of(m), static_cast<NonzeroSums*>(totals.data()));
  return statistics_of(read_back<NonzeroSums>(totals, ctx));
}

DeviceArrangement arrange_cuda(const DeviceNonzeros& m, const Layout& layout,
                               const ExecContext& ctx) {
  const ChunkGrid grid(layout, m.rows, m.columns);
  require(layout.sorted && grid.window_groups() <= kMostChunkGroups &&
              layout.positions != PositionCode::bits,
          "encode: the layout {} is none that is arranged on GPUs", to_text(layout));
  // Freed after the scratch memory, whose destructors wait for the kernels that use both.
  DeviceArrangement made{.layout = layout};
  const Buffer total = zeroed_scratch<unsigned long long>(ctx);
  auto* const units = static_cast<unsigned long long*>(total.data());
  made.starts =
      Buffer(ctx.device, (grid.slices() + 1) * int64_t{sizeof(uint32_t)}, "an encoded weight");
  made.row_order =
      Buffer(ctx.device, grid.places() * int64_t{sizeof(uint16_t)}, "an encoded weight");
  const Buffer lengths =
      Buffer::scratch(ctx, grid.places() * int64_t{sizeof(uint32_t)}, "an encoder");
  auto* const of_groups = static_cast<uint32_t*>(lengths.data());
  const bool bridged = has_differences(layout.positions);
  launch(ctx, entry_count_kernel,
         {.blocks = blocks_for(grid.places(), kCountThreads, "groups of rows"),
          .threads = kCountThreads},
         EntryCount{
             .m = row_bits_of(m),
             .grid = grid,
             .shared_rows = layout.shared_rows,
             .most_difference = bridged ? static_cast<int>(most_difference(layout.positions)) : 0},
         of_groups);
  auto* const starts = static_cast<uint32_t*>(made.starts.data());
  launch(ctx, chunk_arrange_kernel,
         {.blocks = blocks_for(grid.chunks(), 1, "chunks"), .threads = kChunkThreads}, grid,
         layout.interleave, layout.vector, static_cast<const uint32_t*>(of_groups), starts + 1,
         static_cast<uint16_t*>(made.row_order.data()), units);
  made.units = static_cast<int64_t>(read_back<unsigned long long>(total, ctx));
  check_cuda(cudaMemsetAsync(starts, 0, sizeof(uint32_t), cuda_queue(ctx).stream));
  running_totals_cuda(starts + 1, grid.slices(), ctx);
  return made;
}

}  // namespace sparsellm::general_sparse
