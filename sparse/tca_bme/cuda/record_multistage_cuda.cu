#include <algorithm>
#include <bit>
#include <optional>

#include "kernels/base/launch.cuh"
#include "sparse/tca_bme/cuda/record_choices.h"
#include "sparse/tca_bme/cuda/record_multistage.cuh"
#include "sparse/tca_bme/cuda/record_multistage_cuda.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/format/record_sizes.h"

namespace sparsellm {

namespace {

using tca_bme::ceil_div;
using tca_bme::MultistageKernel;
using tca_bme::MultistageParameters;

constexpr int kTileTokens = 8;
constexpr int kMaxTokens = 64;  // of one launch
constexpr int kRoundBytes = tca_bme::kRoundUnits * int{sizeof(float4)};

struct Plan {
  MultistageParameters parameters{};
  int warps = 0;
  int shared_bytes = 0;
};

// As many warps as have two stages each, or one where there are few of them; nothing if not even
// one stage fits.
std::optional<Plan> plan_for(const RecordMatrix& matrix, int token_tiles) {
  constexpr int kFewWarps = 4;
  const int64_t shared_bytes = matrix.multistage.shared_bytes;
  Plan plan;
  MultistageParameters& p = plan.parameters;
  p.row_blocks = static_cast<int>(ceil_div(matrix.rows, tca_bme::kRecordRows));
  p.record_columns =
      static_cast<int>(ceil_div(matrix.columns, matrix.chunks * tca_bme::kChunkColumns));
  p.record_bytes =
      static_cast<int>(ceil_div(matrix.largest_record + tca_bme::kPastValues, 16) * 16);
  p.stage_bytes = p.record_bytes +
                  token_tiles * kTileTokens *
                      (matrix.chunks * tca_bme::kChunkColumns * 2 + tca_bme::x_padding(matrix));
  // The same for any number of tokens and any device: the parts are the order of the sums.
  const int parts = static_cast<int>(std::bit_floor(
      static_cast<unsigned>(std::clamp(p.record_columns, 1, tca_bme::kMaxStageWarps))));
  p.log_parts = std::countr_zero(static_cast<unsigned>(parts));
  for (plan.warps = parts; plan.warps > 0; plan.warps /= 2) {
    p.passes = parts / plan.warps;
    p.rings_at = (plan.warps + (p.passes > 1 ? token_tiles : 0)) * kRoundBytes;
    const int64_t ring_row = int64_t{plan.warps} * p.stage_bytes;  // a stage of each warp
    const int64_t stages =
        std::min<int64_t>((shared_bytes - p.rings_at) / ring_row, tca_bme::kMaxStages);
    if (stages >= (plan.warps > kFewWarps ? 2 : 1)) {
      p.stages = static_cast<int>(stages);
      plan.shared_bytes = static_cast<int>(p.rings_at + stages * ring_row);
      return plan;
    }
  }
  return std::nullopt;
}

MultistageKernel kernel_for(const RecordMatrix& matrix, int token_tiles, DType dtype) {
  if (matrix.narrow()) {
    return tca_bme::widened_multistage_kernel(matrix, token_tiles, dtype);
  }
  return matrix.multistage.byte_products
             ? tca_bme::byte_multistage_kernel(matrix, token_tiles, dtype)
             : tca_bme::bit_multistage_kernel(matrix, token_tiles, dtype);
}

// That the present device has for a thread block, though a matrix may be given less.
int max_shared_bytes() {
  int device = 0;
  int bytes = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

void launch_plan(const Plan& plan, MultistageKernel kernel, int multiprocessors,
                 const ExecContext& ctx) {
  const int threads = plan.warps * 32;
  const auto shared_bytes = static_cast<size_t>(plan.shared_bytes);
  // The same for all launches, which may come from several threads.
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes()));
  int blocks = 0;  // of a multiprocessor
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
  const int64_t max_blocks = int64_t{multiprocessors} * std::max(blocks, 1);
  launch(
      ctx, kernel,
      {.blocks = static_cast<unsigned>(std::min<int64_t>(plan.parameters.row_blocks, max_blocks)),
       .threads = static_cast<unsigned>(threads),
       .shared_bytes = shared_bytes},
      plan.parameters);
}

}  // namespace

MultistageDevice multistage_device(Device on) {
  constexpr int kAmpere = 8;      // those before have no asynchronous copies to shared memory
  constexpr int kBlackwell = 10;  // from here on 1-bit products are emulated
  const int device = on.index;
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  MultistageDevice found;
  if (major >= kAmpere) {
    check_cuda(
        cudaDeviceGetAttribute(&found.multiprocessors, cudaDevAttrMultiProcessorCount, device));
    check_cuda(cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      device));
    found.byte_products = major >= kBlackwell;
  }
  return found;
}

bool record_multistage_fits(const RecordMatrix& matrix) {
  // Narrow values are decoded by 1-bit products alone, unless they are dense.
  const bool takes_bits = matrix.narrow() && matrix.chunk_offsets != 0;
  return matrix.multistage.multiprocessors > 0 &&
         !(takes_bits && matrix.multistage.byte_products) &&
         plan_for(matrix, kMaxTokens / kTileTokens).has_value();
}

void record_multistage_cuda(const RecordMatrix& matrix, const CudaProductOperands& operands,
                            const ExecContext& ctx) {
  const MultistageDevice& device = matrix.multistage;
  require(record_multistage_fits(matrix),
          "records of {} bytes do not fit the multistage kernel in {} bytes of shared memory on {} "
          "multiprocessors",
          matrix.largest_record, device.shared_bytes, device.multiprocessors);
  if (matrix.rows == 0) {
    return;
  }
  for (int64_t first = 0; first < operands.tokens; first += kMaxTokens) {
    const int64_t tokens = std::min<int64_t>(operands.tokens - first, kMaxTokens);
    const int token_tiles =
        static_cast<int>(std::bit_ceil(static_cast<uint64_t>(ceil_div(tokens, kTileTokens))));
    Plan plan = plan_for(matrix, token_tiles).value();
    MultistageParameters& p = plan.parameters;
    p.records = matrix.records;
    p.starts = matrix.starts;
    p.x = static_cast<const uint16_t*>(operands.x) + first * operands.x_stride;
    p.y = static_cast<uint16_t*>(operands.y) + first * operands.y_stride;
    p.bias = operands.bias;
    p.relu = operands.relu;
    p.x_stride = operands.x_stride;
    p.y_stride = operands.y_stride;
    constexpr int64_t kAligned = 8;  // elements of 16 bytes
    p.x_aligned = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                  (tokens == 1 || operands.x_stride % kAligned == 0) &&
                  matrix.columns % kAligned == 0;
    p.rows = static_cast<int>(matrix.rows);
    p.columns = static_cast<int>(matrix.columns);
    p.tokens = static_cast<int>(tokens);
    p.scales = matrix.scales;
    p.group = matrix.group;
    launch_plan(plan, kernel_for(matrix, token_tiles, operands.dtype), device.multiprocessors, ctx);
  }
}

}  // namespace sparsellm
