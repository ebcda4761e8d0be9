#include <algorithm>
#include <optional>

#include "kernels/base/cuda_context.h"
#include "kernels/base/launch.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_multistage.cuh"
#include "sparse/tiled_csl/cuda/tile_multistage_cuda.h"
#include "sparse/tiled_csl/cuda/tile_parameters.cuh"
#include "sparse/tiled_csl/cuda/tile_room.cuh"

namespace sparsellm {
namespace {

using tiled_csl::TileParameters;
using MultistageTileKernel = void (*)(TileParameters);

constexpr int kTokensOfALaunch = 32;
constexpr int64_t kStaticSharedBytes = 128;  // and the alignment of what follows
static_assert(sizeof(tiled_csl::SharedRows) <= kStaticSharedBytes);

struct MultistagePlan {
  int warps = 0;
  int slots = 0;  // of each
  int64_t slot_bytes = 0;

  int64_t shared_bytes() const { return warps * (tiled_csl::kTileBytes + slots * slot_bytes); }
};

// As many warps as have room for two pieces each, one that is read and one under way, or for one
// where there are few of them; nothing if not even one has. The same for any number of tokens: the
// shares of the warps are the order of the sums.
std::optional<MultistagePlan> multistage_plan_for(const TileMatrix& matrix) {
  constexpr int kFewWarps = 4;
  const int64_t shared_bytes = matrix.multistage.shared_bytes - kStaticSharedBytes;
  const int64_t slot_bytes = std::clamp<int64_t>(matrix.largest_record, tiled_csl::kRecordAlignment,
                                                 tiled_csl::kPieceBytes);
  for (const int least : {2, 1}) {
    for (int warps = tiled_csl::kMaxStageWarps; warps >= (least == 2 ? kFewWarps : 1); --warps) {
      const int64_t slots = (shared_bytes / warps - tiled_csl::kTileBytes) / slot_bytes;
      if (slots >= least) {
        return MultistagePlan{
            .warps = warps,
            .slots = static_cast<int>(std::min<int64_t>(slots, tiled_csl::kMaxSlots)),
            .slot_bytes = slot_bytes};
      }
    }
  }
  return std::nullopt;
}

template <class T>
MultistageTileKernel multistage_kernel_for(int64_t tokens) {
  return tokens <= 8    ? &tiled_csl::tile_multistage_kernel<T, 8>
         : tokens <= 16 ? &tiled_csl::tile_multistage_kernel<T, 16>
                        : &tiled_csl::tile_multistage_kernel<T, kTokensOfALaunch>;
}

}  // namespace

TileMultistageDevice tile_multistage_device(Device on) {
  constexpr int kAmpere = 8;  // those before have no asynchronous copies to shared memory
  const int device = on.index;
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  TileMultistageDevice found;
  if (major >= kAmpere) {
    check_cuda(
        cudaDeviceGetAttribute(&found.multiprocessors, cudaDevAttrMultiProcessorCount, device));
    check_cuda(cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      device));
  }
  return found;
}

bool tile_multistage_fits(const TileMatrix& matrix) {
  return matrix.multistage.multiprocessors > 0 && multistage_plan_for(matrix).has_value() &&
         tiled_csl::countable(matrix.rows, matrix.columns);
}

void tile_multistage_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                          const ExecContext& ctx) {
  const tiled_csl::TileGrid grid = tiled_csl::tile_grid(matrix.rows, matrix.columns);
  if (grid.count() == 0) {
    return;
  }
  const TileMultistageDevice& device = matrix.multistage;
  require(tile_multistage_fits(matrix),
          "the multistage kernel of tiled_csl does not take a {} x {} matrix in {} bytes of shared "
          "memory on {} multiprocessors",
          matrix.rows, matrix.columns, device.shared_bytes, device.multiprocessors);
  require(operands.dtype == DType::f16 || operands.dtype == DType::bf16,
          "a tiled_csl product of {} values", name_of(operands.dtype));
  const MultistagePlan plan = multistage_plan_for(matrix).value();
  const CudaQueue& queue = cuda_queue(ctx);
  constexpr int64_t kWarpBytes =
      int64_t{tiled_csl::kTileRows} * kTokensOfALaunch * int64_t{sizeof(float)};
  const int64_t partial_bytes = (plan.warps + 1) * kWarpBytes;  // of a thread block
  // The same for any number of tokens, too.
  const int64_t blocks =
      std::min({tiled_csl::ceil_div(grid.count(), plan.warps), int64_t{device.multiprocessors},
                CudaQueue::kCounters, CudaContext::kWorkspaceBytes / partial_bytes});
  const int64_t shares = blocks * plan.warps;
  for (int64_t first = 0; first < operands.tokens; first += kTokensOfALaunch) {
    const int64_t tokens = std::min<int64_t>(operands.tokens - first, kTokensOfALaunch);
    TileParameters p =
        tiled_csl::tile_parameters(matrix, operands, first, tokens, grid.count(), shares, queue);
    p.slots = plan.slots;
    p.slot_bytes = static_cast<int>(plan.slot_bytes);
    const MultistageTileKernel kernel = operands.dtype == DType::f16
                                            ? multistage_kernel_for<__half>(tokens)
                                            : multistage_kernel_for<__nv_bfloat16>(tokens);
    // The same for all launches on a device, which may come from several threads.
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(device.shared_bytes - kStaticSharedBytes)));
    launch(ctx, kernel,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = static_cast<unsigned>(plan.warps * tiled_csl::kWarp),
            .shared_bytes = static_cast<size_t>(plan.shared_bytes()),
            .pdl = true},
           p);
  }
}

}  // namespace sparsellm
