#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/base/launch.cuh"
#include "sparse/tca_bme/cuda/quotient.cuh"
#include "sparse/tca_bme/cuda/record_choices.h"
#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/cuda/record_matmul.cuh"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_multistage_cuda.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/format/record_sizes.h"

namespace sparsellm {

namespace {

using tca_bme::ceil_div;
using tca_bme::clusters_of;
using tca_bme::max_blocks;
using tca_bme::max_warps;
using tca_bme::Parameters;
using tca_bme::record_choices;
using tca_bme::RecordChoice;
using tca_bme::RecordKernel;
using tca_bme::RecordKernelFor;
using tca_bme::row_blocks_of;
using tca_bme::token_tile_for;
using tca_bme::token_tiles_for;
using tca_bme::TokenTile;
using tca_bme::UnevenParameters;

constexpr int kSharedBytes = 232448;  // that a block may have; each has a multiprocessor of its own
// More than half of a multiprocessor: were there room for two, clusters of a launch that begins
// early (PDL) would gather on those where the launch before ends first.
constexpr int kMinSharedBytes = 117 * 1024;
constexpr int kWantedStages = 2;

struct Plan {
  UnevenParameters parameters{};
  int clusters = 0;
  int warps = 0;
  bool uneven = false;  // by the kernel for uneven matrices
  int shared_bytes = 0;
  int64_t workspace_bytes = 0;
};

// Whether some records are much larger than the others.
bool is_uneven(const RecordMatrix& matrix) { return matrix.common_record < matrix.largest_record; }

struct BlockCounts {
  int least = 0;
  int most = 0;
};

BlockCounts share_row_blocks(const RecordMatrix& matrix, const Plan& plan, UnevenParameters& p) {
  const int row_blocks = row_blocks_of(matrix);
  p.blocks_each = row_blocks / plan.clusters;
  p.blocks_more = row_blocks % plan.clusters;
  const std::vector<int>* const shares = matrix.shares_of(p.split);
  if (shares != nullptr) {
    std::copy(shares->begin(), shares->end(), p.first_block);
  } else {
    for (int c = 0; c <= plan.clusters; ++c) {
      p.first_block[c] = p.blocks_each * c + std::min(c, p.blocks_more);
    }
  }
  BlockCounts counts{.least = row_blocks, .most = 0};
  for (int c = 0; c < plan.clusters; ++c) {
    const int count = p.first_block[c + 1] - p.first_block[c];
    counts = {.least = std::min(counts.least, count), .most = std::max(counts.most, count)};
  }
  return counts;
}

// A ring of bytes costs a warp 5 to 10 % more instructions than stages of one size: those are
// taken, even of the largest records, where there is room for enough.
tca_bme::Ring ring_of(const RecordMatrix& matrix, int64_t room, int max_stages) {
  constexpr int kManyStages = 4;
  const tca_bme::Ring even =
      tca_bme::ring_for(matrix.largest_record, matrix.largest_record, room, max_stages);
  return even.count >= std::min(max_stages, kManyStages)
             ? even
             : tca_bme::ring_for(matrix.largest_record, matrix.common_record, room, max_stages);
}

// Where things are in shared memory; nothing if there is not enough of it, or if the configuration
// makes no sense for the matrix.
std::optional<Plan> plan_for(const RecordMatrix& matrix, const RecordMatmulConfig& config,
                             const TokenTile& tile) {
  Plan plan;
  UnevenParameters& p = plan.parameters;
  p.record_columns =
      static_cast<int>(ceil_div(matrix.columns, matrix.chunks * tca_bme::kChunkColumns));
  const int parts = config.split * config.passes;
  plan.clusters = clusters_of(matrix, config.split);
  if (plan.clusters == 0 || parts > p.record_columns || config.warps > max_warps(tile)) {
    return std::nullopt;
  }
  p.split = config.split;
  p.log_split = std::countr_zero(static_cast<unsigned>(config.split));
  p.passes = config.passes;
  const BlockCounts blocks = share_row_blocks(matrix, plan, p);
  p.columns_each = p.record_columns / parts;
  p.columns_more = p.record_columns % parts;
  const int columns = p.columns_each + (p.columns_more != 0);
  // The kernel divides in 32 bits.
  if (int64_t{blocks.most} * columns * std::max(columns, 2 * config.warps) > INT32_MAX) {
    return std::nullopt;
  }
  for (int i = 0; i < 2; ++i) {
    p.inverse[i] = tca_bme::inverse_of(int64_t{p.columns_each} + i);
  }
  plan.warps = config.warps;
  while (plan.warps > blocks.least * p.columns_each) {  // each has work
    plan.warps /= 2;
  }
  p.warps = plan.warps;
  p.log_warps = std::countr_zero(static_cast<unsigned>(plan.warps));
  p.tiles = blocks.most + plan.warps - 1;

  const int64_t reduction_bytes = int64_t{p.passes} * p.tiles * tile.sum_bytes();
  const int64_t x_bytes = tca_bme::x_bytes(matrix, tile, columns);
  const int max_stages =
      config.stages != 0 ? std::min(config.stages, tca_bme::kMaxStages) : tca_bme::kMaxStages;
  p.owners_at = tca_bme::kBarrierBytes;
  p.reduction_at = static_cast<int>(p.owners_at + ceil_div(4 * blocks.most, 16) * 16);
  for (const bool in_global : {false, true}) {
    const int64_t x_at = p.reduction_at + (in_global ? 0 : reduction_bytes);
    const int64_t room = std::max<int64_t>(kSharedBytes - x_at - x_bytes - 127, 0) / plan.warps;
    const tca_bme::Ring ring = ring_of(matrix, room, max_stages);
    if (ring.count < (in_global ? 1 : std::min(kWantedStages, max_stages)) ||
        ring.bytes > tca_bme::kMaxRingUnits * tca_bme::kRingUnit) {
      continue;
    }
    p.x_at = static_cast<int>(x_at);
    p.rings_at = static_cast<int>(ceil_div(x_at + x_bytes, 128) * 128);
    p.stages = ring.count;
    p.stage_bytes = ring.bytes / ring.count;
    p.ring_units = ring.bytes / tca_bme::kRingUnit;
    plan.uneven = ring.wide || matrix.shares_of(config.split) != nullptr;
    // Gains 1 % of a large matrix, and would cost 5 % of a small one.
    constexpr int kManyRecords = 24;  // of a warp
    p.prefetched_records = blocks.most * columns * p.passes > kManyRecords * plan.warps ? 2 : 0;
    plan.shared_bytes = std::max(p.rings_at + plan.warps * ring.bytes, kMinSharedBytes);
    plan.workspace_bytes = in_global ? reduction_bytes * plan.clusters * p.split : 0;
    return plan;
  }
  return std::nullopt;
}

// Whether a product of this many tokens can be computed in integers.
bool takes_bytes(const RecordMatrix& matrix, int64_t tokens) {
  return (matrix.elements == RecordElements::i8 || matrix.elements == RecordElements::i4) &&
         tokens <= kMaxByteTokens;
}

// Roughly how long a launch takes: by the records that a block computes, and the overhead.
double cost_of(const Plan& plan) {
  const Parameters& p = plan.parameters;
  const double blocks = p.blocks_each + (p.blocks_more != 0);  // of a mean record size
  const double columns = p.columns_each + (p.columns_more != 0);
  const double records = blocks * columns * p.passes;
  // More than two records in flight for each warp help where there are few of them, and cost
  // bandwidth where there are many.
  constexpr double kManyRecords = 12;  // of a warp
  const bool many = records > kManyRecords * plan.warps;
  const double waiting = p.stages == 1 ? 1.5 : many == (p.stages == 2) ? 1.0 : 1.02;
  return records * waiting + 4.0 * p.passes + 0.2 * p.tiles * p.passes + 0.5 * p.split;
}

void launch_plan(const Plan& plan, RecordKernel kernel, const ExecContext& ctx) {
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  // The parameters of the other kernel are the first of these.
  void* parameters[] = {const_cast<UnevenParameters*>(&plan.parameters)};
  launch(ctx, kernel,
         {.blocks = static_cast<unsigned>(plan.clusters * plan.parameters.split),
          .threads = static_cast<unsigned>(plan.warps * 32),
          .shared_bytes = static_cast<size_t>(plan.shared_bytes),
          .pdl = true,
          .cluster = plan.parameters.split},
         parameters);
}

// On the present device, which is this.
ClusterCounts count_clusters_now(int device) {
  ClusterCounts counts{};
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  constexpr int kHopper = 9;  // others have less shared memory, or no clusters
  if (major != kHopper) {
    return counts;
  }
  const RecordKernel kernel = tca_bme::even_record_kernel({.chunks = 4}, {}, DType::f16);
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel));
  constexpr int kClusters = 90;  // a build for earlier architectures has nothing in the kernel
  if (attributes.ptxVersion < kClusters) {
    return counts;
  }
  check_cuda(cudaDeviceGetAttribute(counts.data(), cudaDevAttrMultiProcessorCount, device));
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  for (size_t i = 1; i < counts.size(); ++i) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 1U << i;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1U << i);
    config.blockDim = dim3(256);
    config.dynamicSmemBytes = kSharedBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&counts[i], kernel, &config) != cudaSuccess) {
      cudaGetLastError();
      counts[i] = 0;
    }
  }
  return counts;
}

// Running totals of what row blocks cost a cluster. Decoding takes the same time for any record,
// and bounds most products; bytes count less, for a multiprocessor can have more than its share of
// the memory's bandwidth. Shares by bytes alone were 10 to 25 % slower where rows differ by half.
std::vector<uint32_t> costs_of(std::span<const uint32_t> block_starts) {
  const int64_t blocks = std::ssize(block_starts) - 1;
  std::vector<uint32_t> costs(block_starts.size());
  for (size_t i = 0; i < costs.size() && blocks > 0; ++i) {
    const uint64_t bytes = block_starts[i] - block_starts.front();
    const uint64_t even = static_cast<uint64_t>(block_starts.back() - block_starts.front()) * i /
                          static_cast<uint64_t>(blocks);
    costs[i] = static_cast<uint32_t>((bytes + 2 * even) / 4);
  }
  return costs;
}

}  // namespace

ClusterCounts count_clusters(Device device) {
  static std::mutex mutex;
  static std::map<int, ClusterCounts> known;  // the same for every weight of a model
  check_cuda(cudaSetDevice(device.index));
  const std::lock_guard lock(mutex);
  const auto found = known.find(device.index);
  return found != known.end()
             ? found->second
             : known.emplace(device.index, count_clusters_now(device.index)).first->second;
}

RecordShares record_shares(std::span<const uint32_t> block_starts, const ClusterCounts& clusters) {
  RecordShares shares;
  const int row_blocks = static_cast<int>(std::ssize(block_starts)) - 1;
  const std::vector<uint32_t> costs = costs_of(block_starts);
  for (size_t i = 0; i < shares.size() && row_blocks > 0; ++i) {
    const int count = std::min({clusters[i], row_blocks, tca_bme::kMaxClusters});
    if (count == 0 || count == row_blocks) {
      continue;
    }
    std::vector<int> begins = tca_bme::balanced_runs(costs, count, max_blocks(row_blocks, count));
    const auto weight = [&](int begin, int end) {
      return int64_t{costs[static_cast<size_t>(end)]} - costs[static_cast<size_t>(begin)];
    };
    int64_t heaviest = 0;
    int64_t heaviest_even = 0;
    for (int c = 0; c < count; ++c) {
      const auto even_begin = [&](int cluster) {
        return row_blocks / count * cluster + std::min(cluster, row_blocks % count);
      };
      const auto begin = begins.begin() + c;
      heaviest = std::max(heaviest, weight(begin[0], begin[1]));
      heaviest_even = std::max(heaviest_even, weight(even_begin(c), even_begin(c + 1)));
    }
    constexpr int64_t kMinGainDivisor = 32;
    if (heaviest_even - heaviest > heaviest / kMinGainDivisor) {
      shares[i] = std::move(begins);
    }
  }
  return shares;
}

std::string record_matmul_name(const RecordMatmulConfig& config) {
  if (config.multistage) {
    return "multistage";
  }
  return fmt::format("split-K {}, {} warps, {} passes, {} stages{}", config.split, config.warps,
                     config.passes, config.stages, config.bytes ? ", bytes" : "");
}

std::vector<RecordMatmulConfig> record_matmul_candidates(const RecordMatrix& matrix,
                                                         int64_t tokens) {
  if (matrix.clusters_of(1) == 0) {
    return record_multistage_fits(matrix) ? std::vector<RecordMatmulConfig>{{.multistage = true}}
                                          : std::vector<RecordMatmulConfig>();
  }
  const std::vector<RecordChoice> all = record_choices(matrix, token_tiles_for(tokens));
  std::vector<std::pair<double, RecordMatmulConfig>> found;
  const auto try_all = [&](bool bytes, bool crowded) {
    const size_t before = found.size();
    bool missing = false;  // there was no room for the choice before
    for (const RecordChoice& choice : all) {
      if (choice.crowded && !(missing && crowded)) {
        continue;
      }
      RecordMatmulConfig config = choice.config;
      config.bytes = bytes;
      const std::optional<Plan> plan = plan_for(matrix, config, token_tile_for(config, tokens));
      missing = !plan.has_value();
      if (plan) {
        constexpr double kWideCost = 1.1;  // of values that become 16 bits wide
        const bool widened = !bytes && matrix.narrow();
        found.emplace_back(cost_of(*plan) * (widened ? kWideCost : 1.0), config);
      }
    }
    return found.size() > before;
  };
  for (const bool bytes : {true, false}) {
    if (bytes && !takes_bytes(matrix, tokens)) {
      continue;
    }
    if (!try_all(bytes, is_uneven(matrix))) {
      try_all(bytes, true);  // large records are common in this matrix
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RecordMatmulConfig> configs;
  for (const auto& [cost, config] : found) {
    configs.push_back(config);
  }
  return configs;
}

bool record_matmul_fits(const RecordMatrix& matrix, const RecordMatmulConfig& config,
                        int64_t tokens) {
  if (config.multistage) {
    return record_multistage_fits(matrix);
  }
  return (!config.bytes || takes_bytes(matrix, tokens)) &&
         plan_for(matrix, config, token_tile_for(config, tokens)).has_value();
}

void tca_bme::record_matmul_by(const RecordKernels& kernels, const RecordMatrix& matrix,
                               const CudaProductOperands& operands,
                               const RecordMatmulConfig& config, const ExecContext& ctx) {
  if (matrix.rows == 0) {
    return;
  }
  const int64_t most_tokens = tca_bme::launch_tokens(config);
  for (int64_t first = 0; first < operands.tokens; first += most_tokens) {
    const int64_t tokens = std::min(operands.tokens - first, most_tokens);
    const TokenTile tile = token_tile_for(config, tokens);
    std::optional<Plan> plan = plan_for(matrix, config, tile);
    require(plan.has_value(), "no record kernel with {} fits {} tokens of a {} x {} matrix",
            record_matmul_name(config), tokens, matrix.rows, matrix.columns);
    Parameters& p = plan->parameters;
    p.records = matrix.records;
    p.starts = matrix.starts;
    p.x = static_cast<const uint16_t*>(operands.x) + first * operands.x_stride;
    p.y = static_cast<uint16_t*>(operands.y) + first * operands.y_stride;
    p.bias = operands.bias;
    p.scales = matrix.scales;
    p.group = matrix.group;
    p.relu = operands.relu;
    // With ordinary launches x is there already: it is requested as soon as the memory is busy or,
    // where integers are made of it, at once.
    p.records_before_wait = ctx.launches == Launches::overlapping ? p.stages : config.bytes ? 0 : 1;
    p.x_stride = operands.x_stride;
    p.y_stride = operands.y_stride;
    constexpr int64_t kAligned = 8;  // elements of 16 bytes
    p.x_aligned = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                  (tokens == 1 || operands.x_stride % kAligned == 0) &&
                  matrix.columns % kAligned == 0;
    p.rows = static_cast<int>(matrix.rows);
    p.columns = static_cast<int>(matrix.columns);
    p.tokens = static_cast<int>(tokens);
    p.token_inverse = tca_bme::inverse_of(tokens);
    if (plan->workspace_bytes != 0) {
      require(operands.workspace != nullptr, "a record kernel without its workspace of {} bytes",
              plan->workspace_bytes);
      p.global_reduction = static_cast<float4*>(operands.workspace);
    }
    const RecordKernelFor kernel_for = plan->uneven ? kernels.uneven : kernels.even;
    require(kernel_for != nullptr, "there is no such kernel for an uneven matrix");
    launch_plan(*plan, kernel_for(matrix, tile, operands.dtype), ctx);
  }
}

void record_matmul_cuda(const RecordMatrix& matrix, const CudaProductOperands& operands,
                        const RecordMatmulConfig& config, const ExecContext& ctx) {
  if (config.multistage) {
    record_multistage_cuda(matrix, operands, ctx);
    return;
  }
  const tca_bme::RecordKernels kernels =
      matrix.narrow() ? tca_bme::RecordKernels{.even = tca_bme::even_quantized_kernel,
                                               .uneven = tca_bme::uneven_quantized_kernel}
                      : tca_bme::RecordKernels{.even = tca_bme::even_record_kernel,
                                               .uneven = tca_bme::uneven_record_kernel};
  tca_bme::record_matmul_by(kernels, matrix, operands, config, ctx);
}

}  // namespace sparsellm
