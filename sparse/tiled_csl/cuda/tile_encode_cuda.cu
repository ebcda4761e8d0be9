#include <string>

#include "kernels/base/launch.cuh"
#include "kernels/checks.h"
#include "sparse/dense_source.cuh"
#include "sparse/running_totals_cuda.h"
#include "sparse/tiled_csl/cuda/tile_encode_cuda.h"
#include "sparse/tiled_csl/cuda/tile_record_writer.cuh"
#include "sparse/tiled_csl/format/record_plan.h"
#include "sparse/tiled_csl/host/tile_records.h"

namespace sparsellm::tiled_csl {
namespace {

constexpr int kCountWarps = 4;
constexpr int kPlanThreads = 64;  // few, so that they are spread over the multiprocessors

// The nonzeros of each bank of a tile, a warp for a tile.
__global__ void __launch_bounds__(kCountWarps* kWarp)
    tile_count_kernel(DenseSource w, TileGrid grid, uint16_t* counts) {
  const int lane = threadIdx.x % kWarp;
  const int64_t tile = int64_t{blockIdx.x} * kCountWarps + threadIdx.x / kWarp;
  if (tile >= grid.count()) {
    return;
  }
  const TileCorner corner = corner_of(grid, tile);
  int count = 0;
#pragma unroll 16
  for (int row = 0; row < kTileRows; ++row) {
    count += __popc(nonzero_bits(load_pair(w, corner, row, lane)));
  }
  counts[tile * kBanks + lane] = static_cast<uint16_t>(count);
}

struct Totals {
  unsigned long long nonzeros;
  unsigned long long units;  // of kRecordAlignment bytes, of all records
  unsigned largest;          // units of a record
};

// What each record consists of, and its size in units of kRecordAlignment bytes: a thread for each.
__global__ void __launch_bounds__(kPlanThreads)
    tile_plan_kernel(int64_t tiles, const uint16_t* counts, RecordPlan* plans, uint32_t* sizes,
                     Totals* totals) {
  const int64_t tile = int64_t{blockIdx.x} * kPlanThreads + threadIdx.x;
  unsigned nonzeros = 0;
  unsigned units = 0;
  if (tile < tiles) {
    BankCounts banks;
    for (int bank = 0; bank < kBanks; ++bank) {
      banks[bank] = counts[tile * kBanks + bank];
      nonzeros += banks[bank];
    }
    plans[tile] = plan_record(banks);
    units = static_cast<unsigned>(plans[tile].bytes() / kRecordAlignment);
    sizes[tile] = units;
  }
  nonzeros = __reduce_add_sync(kAllLanes, nonzeros);
  const unsigned largest = __reduce_max_sync(kAllLanes, units);
  units = __reduce_add_sync(kAllLanes, units);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&totals->nonzeros, static_cast<unsigned long long>(nonzeros));
    atomicAdd(&totals->units, static_cast<unsigned long long>(units));
    atomicMax(&totals->largest, largest);
  }
}

// A block makes the record of a tile.
__global__ void __launch_bounds__(kEmitWarps* kWarp)
    tile_emit_kernel(DenseSource w, TileGrid grid, const RecordPlan* plans, const uint32_t* starts,
                     uint8_t* records) {
  __shared__ BankLists lists;
  const int count = gather(w, corner_of(grid, blockIdx.x), lists);
  __syncthreads();
  const int groups = plans[blockIdx.x].groups;
  const int words = plans[blockIdx.x].words;
  const LanePlan mine = lane_plan(plans[blockIdx.x], count, lists);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  uint8_t* piece = records + int64_t{starts[blockIdx.x]} * kRecordAlignment;
  int group = 0;
  int word = 0;
  bool hosts = groups > 0;
  for (bool last = false; !last; piece += kPieceBytes) {
    const PieceSizes sizes = next_piece(groups - group, words - word, hosts);
    last = group + sizes.groups == groups && word + sizes.words == words;
    if (threadIdx.x == 0) {
      const uint32_t flags = (last ? kLastPiece : 0) | (hosts ? kHasHosts : 0);
      *reinterpret_cast<uint32_t*>(piece) = sizes.groups | flags << 8 | sizes.words << 16;
    }
    uint8_t* const first_word = piece + kPieceHeader + (hosts ? kWarp : 0);
    if (hosts && warp == 0) {
      piece[kPieceHeader + lane] =
          static_cast<uint8_t>(mine.donor * kSlots + (mine.hosted == 0 ? 0 : kSlots - mine.hosted));
    }
    if (sizes.words > 0) {
      write_words(mine, lists, word, sizes.words, reinterpret_cast<uint32_t*>(first_word));
    }
    uint8_t* const values = piece + head_bytes(hosts, sizes.words);
    uint8_t* const locations = values + sizes.groups * kGroupValueBytes;
    uint8_t* const end = values + sizes.groups * kGroupBytes;
    write_zeros(first_word + sizes.words * kWordBytes, values);
    for (int i = warp; i < sizes.groups; i += kEmitWarps) {
      write_slots(mine, lists, group + i, reinterpret_cast<uint4*>(values) + i * kWarp + lane,
                  reinterpret_cast<uint2*>(locations) + i * kWarp + lane);
    }
    write_zeros(end, last ? end : piece + kPieceBytes);
    group += sizes.groups;
    word += sizes.words;
    hosts = false;
  }
}

}  // namespace

DeviceTiles encode_tiles_cuda(const Tensor& w, ExecContext& ctx) {
  check_tensor({"encode", "w"}, w, Elements::activation, {kAnySize, kAnySize}, ctx);
  const TileGrid grid = tile_grid(w.size(0), w.size(1));
  require(grid.count() <= INT32_MAX, "encode: {} tiles of a {} x {} matrix", grid.count(),
          w.size(0), w.size(1));
  const auto tiles = static_cast<unsigned>(grid.count());
  const DenseSource source = dense_source(w);
  const cudaStream_t stream = cuda_queue(ctx).stream;
  // Freed after the scratch memory, whose destructors wait for the kernels that use both.
  DeviceTiles made{.starts = Buffer(ctx.device, (grid.count() + 1) * int64_t{sizeof(uint32_t)},
                                    "an encoded weight")};
  auto* const starts = static_cast<uint32_t*>(made.starts.data());
  check_cuda(cudaMemsetAsync(starts, 0, sizeof(uint32_t), stream));
  const auto scratch = [&](int64_t bytes) { return Buffer::scratch(ctx, bytes, "an encoder"); };
  const Buffer counts = scratch(grid.count() * kBanks * int64_t{sizeof(uint16_t)});
  const Buffer plans = scratch(grid.count() * int64_t{sizeof(RecordPlan)});
  const Buffer all = scratch(sizeof(Totals));
  check_cuda(cudaMemsetAsync(all.data(), 0, sizeof(Totals), stream));
  launch(ctx, tile_count_kernel,
         {.blocks = static_cast<unsigned>(ceil_div(tiles, kCountWarps)),
          .threads = kCountWarps * kWarp},
         source, grid, static_cast<uint16_t*>(counts.data()));
  launch(ctx, tile_plan_kernel,
         {.blocks = static_cast<unsigned>(ceil_div(tiles, kPlanThreads)), .threads = kPlanThreads},
         grid.count(), static_cast<const uint16_t*>(counts.data()),
         static_cast<RecordPlan*>(plans.data()), starts + 1, static_cast<Totals*>(all.data()));

  Totals totals{};
  ctx.cuda->copy(&totals, all.data(), sizeof(totals), ctx.queue);
  const int64_t bytes = static_cast<int64_t>(totals.units) * kRecordAlignment;
  const std::string too_large = why_too_large(bytes);
  require(too_large.empty(), "a weight cannot be encoded: {}", too_large);
  made.nonzeros = static_cast<int64_t>(totals.nonzeros);
  made.largest_record = int64_t{totals.largest} * kRecordAlignment;
  running_totals_cuda(starts + 1, grid.count(), ctx);
  made.records = Buffer(ctx.device, bytes, "an encoded weight");
  launch(ctx, tile_emit_kernel, {.blocks = tiles, .threads = kEmitWarps * kWarp}, source, grid,
         static_cast<const RecordPlan*>(plans.data()), static_cast<const uint32_t*>(starts),
         static_cast<uint8_t*>(made.records.data()));
  ctx.cuda->synchronize();
  return made;
}

}  // namespace sparsellm::tiled_csl
