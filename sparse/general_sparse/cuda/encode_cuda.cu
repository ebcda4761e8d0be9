#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/launch.cuh"
#include "kernels/checks.h"
#include "sparse/dense_source.cuh"
#include "sparse/general_sparse/cuda/encode_cuda.h"
#include "sparse/general_sparse/cuda/lane_writer.cuh"
#include "sparse/general_sparse/cuda/nonzeros_cuda.h"
#include "sparse/general_sparse/cuda/row_weight.h"
#include "sparse/general_sparse/cuda/slice_plan.h"
#include "sparse/general_sparse/cuda/slice_product_cuda.h"
#include "sparse/general_sparse/cuda/word_bits.cuh"
#include "sparse/general_sparse/format/encoded_size.h"
#include "sparse/general_sparse/layout_rule.h"

namespace sparsellm::general_sparse {
namespace {

// The shared memory of a block: enough for panels of 16384 columns, and there on every device.
constexpr int kMostBankBytes = 72 << 10;
constexpr int kRowWriteThreads = 128;

struct SliceWrite {
  DenseSource w;
  RowBits bits;
  ChunkGrid grid;
  int shared_rows;
  int vector;
  const uint32_t* starts;
  const uint16_t* row_order;
  void* positions;
  uint16_t* values;
  uint16_t* border_positions;  // null: none are wanted
  // Of BankEntries, for each slice; null: the block has it as shared memory.
  uint8_t* bank_memory;
  int class_words;
};

__device__ BankMemory bank_memory_of(const SliceWrite& p, int64_t slice, int lane) {
  extern __shared__ uint64_t bank_words[];
  auto* const bytes = p.bank_memory == nullptr
                          ? reinterpret_cast<uint8_t*>(bank_words)
                          : p.bank_memory + slice * kSliceLanes * BankMemory::bytes(p.class_words);
  auto* const classes = reinterpret_cast<uint64_t*>(bytes);
  const int words = BankMemory::kClasses * p.class_words * kSliceLanes;
  return {.classes = classes + lane,
          .left = reinterpret_cast<uint16_t*>(classes + words) + lane,
          .class_words = p.class_words,
          .stride = kSliceLanes};
}

__device__ GroupElements elements_of(const SliceWrite& p, const Chunk& chunk, int64_t group,
                                     int rows) {
  return {.first = p.w.data + group * p.shared_rows * p.w.stride + chunk.first_column,
          .row_stride = p.w.stride,
          .rows = rows};
}

// A warp writes a slice, a lane for each of its groups.
template <PositionCode code>
__global__ void __launch_bounds__(kSliceLanes) slice_write_kernel(SliceWrite p) {
  using Position = std::conditional_t<code == PositionCode::i8, uint8_t, uint16_t>;
  const auto lane = static_cast<int>(threadIdx.x);
  const int64_t slice = blockIdx.x;
  const SlicePlace in = p.grid.slice(slice);
  const int64_t place = in.in_chunk * kSliceLanes + lane;
  GroupBits bits;
  GroupElements elements;
  if (place < in.chunk.groups) {
    const int64_t group = in.chunk.first_group + p.row_order[in.chunk.first_place + place];
    bits = group_bits(p.bits, p.shared_rows, in.chunk, group);
    elements = elements_of(p, in.chunk, group, bits.rows);
  }
  LaneTarget<Position> to{.positions = static_cast<Position*>(p.positions),
                          .values = p.values,
                          .first_unit = p.starts[slice],
                          .units = p.starts[slice + 1] - p.starts[slice],
                          .lane = lane,
                          .vector = p.vector,
                          .shared_rows = p.shared_rows};
  if constexpr (code == PositionCode::i8) {
    if (p.border_positions != nullptr) {
      to.border_positions = p.border_positions + slice * (kMostParts - 1) * kSliceLanes;
    }
    NearbyEntries<WordBits> entries(bits, lane);
    write_lane(entries, elements, to);
  } else {
    BankEntries<WordBits> entries(bits, lane, bank_memory_of(p, slice, lane));
    write_lane(entries, elements, to);
  }
}

// A thread writes a group that is apart.
template <class Position>
__global__ void __launch_bounds__(kRowWriteThreads) row_write_kernel(SliceWrite p) {
  const int64_t slice = int64_t{blockIdx.x} * kRowWriteThreads + threadIdx.x;
  if (slice >= p.grid.slices()) {
    return;
  }
  const SlicePlace in = p.grid.slice(slice);
  const int64_t group = in.chunk.first_group + p.row_order[in.chunk.first_place + in.in_chunk];
  const GroupBits bits = group_bits(p.bits, p.shared_rows, in.chunk, group);
  AscendingEntries<WordBits> entries(bits);
  write_lane(entries, elements_of(p, in.chunk, group, bits.rows),
             LaneTarget<Position>{.positions = static_cast<Position*>(p.positions),
                                  .values = p.values,
                                  .first_unit = p.starts[slice],
                                  .units = p.starts[slice + 1] - p.starts[slice],
                                  .lanes = 1,
                                  .vector = p.vector,
                                  .shared_rows = p.shared_rows});
}

void write_slices(const Tensor& w, const DeviceNonzeros& nonzeros, const DeviceEncoding& made,
                  const ExecContext& ctx) {
  const ChunkGrid grid(made.layout, made.rows, made.columns);
  SliceWrite p{.w = dense_source(w),
               .bits = row_bits_of(nonzeros),
               .grid = grid,
               .shared_rows = made.layout.shared_rows,
               .vector = made.layout.vector,
               .starts = static_cast<const uint32_t*>(made.starts.data()),
               .row_order = static_cast<const uint16_t*>(made.row_order.data()),
               .positions = made.positions.data(),
               .values = static_cast<uint16_t*>(made.values.data()),
               .border_positions = static_cast<uint16_t*>(made.border_positions.data()),
               .bank_memory = nullptr,
               .class_words = 0};
  require(grid.slices() <= INT32_MAX, "encode: {} slices of a {} x {} matrix", grid.slices(),
          made.rows, made.columns);
  if (made.layout.interleave == 1) {
    launch(ctx,
           made.layout.positions == PositionCode::u32 ? row_write_kernel<uint32_t>
                                                      : row_write_kernel<uint16_t>,
           {.blocks = static_cast<unsigned>(ceil_div(grid.slices(), int64_t{kRowWriteThreads})),
            .threads = kRowWriteThreads},
           p);
    return;
  }
  LaunchShape shape{.blocks = static_cast<unsigned>(grid.slices()), .threads = kSliceLanes};
  if (made.layout.positions == PositionCode::i8) {
    launch(ctx, slice_write_kernel<PositionCode::i8>, shape, p);
    return;
  }
  const int64_t class_words =
      BankMemory::class_words_for(std::min(grid.panel_columns(), made.columns));
  const int64_t bytes = kSliceLanes * BankMemory::bytes(class_words);
  p.class_words = static_cast<int>(class_words);
  Buffer bank_memory;
  if (bytes <= kMostBankBytes) {
    // The most that any matrix needs: launches may come from several threads.
    check_cuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(slice_write_kernel<PositionCode::u16>),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBankBytes));
    shape.shared_bytes = static_cast<size_t>(bytes);
  } else {
    bank_memory = Buffer::scratch(ctx, grid.slices() * bytes, "an encoder");
    p.bank_memory = static_cast<uint8_t*>(bank_memory.data());
  }
  launch(ctx, slice_write_kernel<PositionCode::u16>, shape, p);
}

template <class T>
std::vector<T> on_host(const Buffer& buffer, const ExecContext& ctx) {
  std::vector<T> values(static_cast<size_t>(buffer.bytes()) / sizeof(T));
  ctx.cuda->copy(values.data(), buffer.data(), buffer.bytes(), ctx.queue);
  return values;
}

// What load_encoding_cuda() makes beside the parts, of starts and order on the host.
void add_schedules(DeviceEncoding& made, const ChunkGrid& grid, const ExecContext& ctx) {
  const std::vector<int> shares = scheduled_shares(cuda_state(ctx).multiprocessors, grid.slices());
  const std::vector<uint32_t> schedules =
      slice_schedules(made.layout, grid, on_host<uint32_t>(made.starts, ctx), shares, ctx.threads);
  made.schedules = to_device(std::as_bytes(std::span(schedules)), ctx.device);
}

}  // namespace

std::optional<DeviceEncoding> encode_cuda(const Tensor& w, const ExecContext& ctx) {
  check_tensor({"encode", "w"}, w, Elements::activation, {kAnySize, kAnySize}, ctx);
  constexpr int64_t kMaxSize = CompressedRows::kMaxSize;
  if (w.element_count() == 0 || w.size(0) > kMaxSize || w.size(1) > kMaxSize) {
    return std::nullopt;
  }
  // Freed after the scratch memory, whose destructors wait for the kernels that use both.
  DeviceEncoding made{.dtype = w.dtype(), .rows = w.size(0), .columns = w.size(1)};
  std::optional<DeviceArrangement> arranged;
  const DeviceNonzeros nonzeros = nonzeros_cuda(w, ctx);
  const RowStatistics statistics = row_statistics_cuda(nonzeros, ctx);
  if (statistics.nonzeros > kMostNonzeros) {
    return std::nullopt;
  }
  made.nonzeros = statistics.nonzeros;
  made.layout =
      choose_layout({.rows = made.rows, .columns = made.columns, .dtype = made.dtype}, statistics,
                    LayoutFor::speed, [&](const Layout& layout) {
                      arranged = arrange_cuda(nonzeros, layout, ctx);
                      return encoded_bytes(layout, ChunkGrid(layout, made.rows, made.columns),
                                           arranged->units, made.dtype);
                    });
  if (!arranged || arranged->layout != made.layout) {
    arranged = arrange_cuda(nonzeros, made.layout, ctx);
  }
  require_starts_reach(made.layout, arranged->units);
  made.units = arranged->units;
  made.starts = std::move(arranged->starts);
  made.row_order = std::move(arranged->row_order);
  const ChunkGrid grid(made.layout, made.rows, made.columns);
  const int64_t entries = entries_in(made.layout, made.units);
  const auto new_buffer = [&](int64_t count, DType dtype) {
    return Buffer(ctx.device, count * size_of(dtype), "an encoded weight");
  };
  made.positions = new_buffer(entries, dtype_of(made.layout.positions));
  made.values = new_buffer(entries * made.layout.shared_rows, made.dtype);
  if (has_slice_kernels(made.layout, made.dtype)) {
    add_schedules(made, grid, ctx);
    if (made.layout.positions == PositionCode::i8) {
      made.border_positions =
          new_buffer(grid.slices() * (kMostParts - 1) * kSliceLanes, DType::u16);
    }
  }
  if (has_row_kernels(made.layout, made.columns)) {
    add_row_pieces(made, on_host<uint32_t>(made.starts, ctx),
                   on_host<uint16_t>(made.row_order, ctx), ctx.device);
  }
  write_slices(w, nonzeros, made, ctx);
  ctx.cuda->synchronize();
  return made;
}

}  // namespace sparsellm::general_sparse
