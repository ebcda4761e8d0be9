#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/launch.cuh"
#include "sparse/running_totals_cuda.h"
#include "sparse/tca_bme/quantized/cuda/dense_records.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_encode_cuda.h"
#include "sparse/tca_bme/quantized/cuda/quantized_records.cuh"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::tca_bme {
namespace {

constexpr int kSizeThreads = 256;
constexpr int kCountThreads = kCountWarps * kWarpSize;

// quantized_records.cuh says what the warps and blocks of this one and of the last do.
__global__ void __launch_bounds__(kCountThreads)
    quantized_count_kernel(CodeSource q, RecordGrid grid, uint32_t* bits,
                           unsigned long long* all_bits) {
  count_quantized(q, grid, bits, all_bits);
}

// The bits of records become their sizes, in units of 16 bytes, a thread for each.
__global__ void __launch_bounds__(kSizeThreads)
    quantized_size_kernel(QuantizedLayout layout, int64_t count, uint32_t* sizes) {
  const int64_t r = int64_t{blockIdx.x} * kSizeThreads + threadIdx.x;
  if (r < count) {
    sizes[r] = static_cast<uint32_t>(layout.record_bytes(static_cast<int32_t>(sizes[r])) /
                                     kRecordAlignment);
  }
}

// There are 10 KiB of shared memory.
__global__ void __launch_bounds__(kEmitThreads)
    quantized_emit_kernel(CodeSource q, QuantizedLayout layout, RecordGrid grid,
                          const uint32_t* starts, uint8_t* records) {
  emit_quantized(q, layout, grid, starts, records);
}

__global__ void __launch_bounds__(kEmitThreads)
    dense_emit_kernel(CodeSource q, QuantizedLayout layout, RecordGrid grid, const uint32_t* starts,
                      uint8_t* records) {
  emit_dense(q, layout, grid, starts, records);
}

LaunchShape shape_for(int64_t count, int64_t per_block, int threads) {
  return {.blocks = dim3(static_cast<unsigned>(ceil_div(count, per_block))),
          .threads = dim3(static_cast<unsigned>(threads))};
}

}  // namespace

DeviceQuantized encode_quantized_cuda(DeviceQuantizedMatrix q, std::string_view format,
                                      ExecContext& ctx) {
  const RecordGrid grid = quantized_grid(q.rows, q.columns);
  const cudaStream_t stream = cuda_queue(ctx).stream;
  const CodeSource source{.codes = static_cast<const int8_t*>(q.codes.data()),
                          .scales = static_cast<const float*>(q.scales.data()),
                          .rows = q.rows,
                          .columns = q.columns,
                          .aligned = q.columns % 4 == 0,
                          .signed_zeros = q.type == ValueType::f8};
  // Freed after the scratch memory, whose destructor waits for the kernels that use both.
  DeviceQuantized made;
  unsigned long long nonzeros = 0;
  const Buffer total = Buffer::scratch(ctx, int64_t{sizeof(nonzeros)}, "an encoder");
  auto* const all_bits = static_cast<unsigned long long*>(total.data());
  check_cuda(cudaMemsetAsync(all_bits, 0, sizeof(nonzeros), stream));
  made.starts =
      Buffer(ctx.device, (grid.count() + 1) * int64_t{sizeof(uint32_t)}, "an encoded weight");
  auto* const starts = static_cast<uint32_t*>(made.starts.data());
  check_cuda(cudaMemsetAsync(starts, 0, sizeof(uint32_t), stream));
  launch(ctx, quantized_count_kernel, shape_for(grid.count(), kCountWarps, kCountThreads), source,
         grid, starts + 1, all_bits);
  ctx.cuda->copy(&nonzeros, all_bits, sizeof(nonzeros), ctx.queue);
  made.nonzeros = static_cast<int64_t>(nonzeros);
  made.layout =
      quantized_layout_in(format, values_of(q.type), q.group, q.rows * q.columns, made.nonzeros);
  launch(ctx, quantized_size_kernel, shape_for(grid.count(), kSizeThreads, kSizeThreads),
         made.layout, grid.count(), starts + 1);
  running_totals_cuda(starts + 1, grid.count(), ctx);

  std::vector<uint32_t> all_starts(static_cast<size_t>(grid.count()) + 1);
  ctx.cuda->copy(all_starts.data(), starts, made.starts.bytes(), ctx.queue);
  // Totals are modulo 2^32.
  require(std::ranges::is_sorted(all_starts),
          "{}: the values of {} records are more than 32-bit starts of records hold", format,
          grid.count());
  made.sizes = record_sizes(all_starts, grid);
  made.records =
      Buffer(ctx.device, int64_t{all_starts.back()} * kRecordAlignment, "an encoded weight");
  launch(ctx, made.layout.dense() ? dense_emit_kernel : quantized_emit_kernel,
         shape_for(grid.count(), 1, kEmitThreads), source, made.layout, grid,
         static_cast<const uint32_t*>(starts), static_cast<uint8_t*>(made.records.data()));
  ctx.cuda->synchronize();
  if (!made.layout.nibbles()) {
    made.scales = std::move(q.scales);
  }
  return made;
}

}  // namespace sparsellm::tca_bme
