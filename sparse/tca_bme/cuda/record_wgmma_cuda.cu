#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <span>

#include "kernels/base/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "sparse/tca_bme/cuda/record_wgmma.cuh"
#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"
#include "sparse/tca_bme/cuda/record_wgmma_kernels.cuh"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"
#include "sparse/tca_bme/quantized/cuda/x_units.h"

namespace sparsellm {

namespace {

using tca_bme::ceil_div;
using tca_bme::TileParameters;
using tca_bme::WgmmaKernel;
using CombineKernel = void (*)(TileParameters);

constexpr int kSharedBytes = 232448;  // that a block may have

constexpr int64_t kAligned = 8;  // elements of 16 bytes

template <class T>
CombineKernel combine_kernel_for(int tile) {
  switch (tile) {
    case 32:
      return &tca_bme::record_wgmma_combine_kernel<T, 32>;
    case 64:
      return &tca_bme::record_wgmma_combine_kernel<T, 64>;
    case 128:
      return &tca_bme::record_wgmma_combine_kernel<T, 128>;
    default:
      return &tca_bme::record_wgmma_combine_kernel<T, 256>;
  }
}

constexpr int kUnitTiles[] = {32, 64, tca_bme::kLargeUnitTile};
constexpr int kI8Tiles[] = {16, 32, 64, tca_bme::kLargeUnitTile};
static_assert(std::ranges::equal(tca_bme::kByteWgmmaTiles, std::span(kI8Tiles).first(3)));

std::span<const int> tiles_of(const RecordMatrix& matrix) {
  switch (matrix.elements) {
    case RecordElements::halves:
      return tca_bme::kWgmmaTiles;
    case RecordElements::i8:
      return kI8Tiles;
    default:
      return kUnitTiles;
  }
}

// What becomes of x before the product.
enum class WgmmaX { as_it_is, planes, units };
WgmmaX x_of(const RecordMatrix& matrix, int tile) {
  if (!matrix.narrow()) {
    return WgmmaX::as_it_is;
  }
  const bool in_integers = matrix.elements == RecordElements::i8 && tile != tca_bme::kLargeUnitTile;
  return in_integers ? WgmmaX::planes : WgmmaX::units;
}
struct Geometry {
  int consumers;     // warpgroups of a block
  int x_rows;        // of a unit
  int step_records;  // two units
  int span_records;  // what a part of the columns is a multiple of
  int total_bytes;   // of a block, in shared memory
};
Geometry geometry_of(const RecordMatrix& matrix, int tile) {
  if (x_of(matrix, tile) == WgmmaX::planes) {
    return {.consumers = tca_bme::byte_consumers_for(tile),
            .x_rows = tca_bme::kPlanes * tile,
            .step_records = tca_bme::kStepUnits,
            .span_records = tca_bme::kPlaneBlock / (matrix.chunks * tca_bme::kChunkColumns),
            .total_bytes = tca_bme::has_shared_totals(tile)
                               ? tca_bme::byte_consumers_for(tile) * tca_bme::kRecordRows * tile *
                                     int{sizeof(float)}
                               : 0};
  }
  return {.consumers = tca_bme::consumers_for(tile),
          .x_rows = tile,
          .step_records = tca_bme::kStepUnits * tca_bme::kUnitChunks / matrix.chunks,
          .span_records = 1,
          .total_bytes = 0};
}

struct Plan {
  TileParameters parameters{};
  int consumers = 0;
  int token_tiles = 0;  // of a launch, at most
  bool wide = false;    // some records are larger than record_bytes
  int shared_bytes = 0;
  int64_t workspace_bytes = 0;
};

// Nothing if there is not enough shared memory, or if the configuration makes no sense for the
// matrix.
std::optional<Plan> plan_for(const RecordMatrix& matrix, const RecordWgmmaConfig& config,
                             int64_t tokens) {
  Plan plan;
  TileParameters& p = plan.parameters;
  if (std::ranges::find(tiles_of(matrix), config.tile) == tiles_of(matrix).end() ||
      (matrix.narrow() && config.stream_k)) {
    return std::nullopt;
  }
  const Geometry geometry = geometry_of(matrix, config.tile);
  const int consumers = geometry.consumers;
  plan.consumers = consumers;
  const int slices = consumers / config.row_blocks;
  const int parts = config.split * slices;
  const int fragments = config.tile / 8;
  const int clusters = matrix.clusters_of(config.split);
  p.record_columns =
      static_cast<int>(ceil_div(matrix.columns, matrix.chunks * tca_bme::kChunkColumns));
  p.row_blocks = static_cast<int>(ceil_div(matrix.rows, tca_bme::kRecordRows));
  p.groups = static_cast<int>(ceil_div(p.row_blocks, config.row_blocks));
  constexpr int kMaxParts = 32;  // a lane for each
  const int spans = static_cast<int>(ceil_div(p.record_columns, geometry.span_records));
  if (matrix.rows == 0 || clusters == 0 || parts > std::min(spans, kMaxParts) ||
      config.row_blocks * slices != consumers || (config.stream_k && parts != 1)) {
    return std::nullopt;
  }
  // A cluster cuts up to all of the row blocks into rounds, in 32 bits.
  if (!config.stream_k && int64_t{p.row_blocks} * p.groups > INT32_MAX) {
    return std::nullopt;
  }
  // Stream-K is worth its fix-up where one tile of tokens has all clusters.
  const int64_t token_tiles =
      config.stream_k ? 1 : ceil_div(std::max<int64_t>(tokens, 1), config.tile);
  plan.token_tiles = static_cast<int>(std::min<int64_t>(token_tiles, clusters));
  const int max_tile_clusters = clusters / plan.token_tiles;
  p.tile_clusters = config.stream_k ? static_cast<int>(std::min<int64_t>(
                                          max_tile_clusters, int64_t{p.groups} * p.record_columns))
                                    : std::min(max_tile_clusters, p.row_blocks);
  if (config.stream_k) {
    plan.workspace_bytes = tca_bme::stream_k_bytes(config.tile, p.tile_clusters);
  }
  p.split = config.split;
  p.group_blocks = config.row_blocks;
  const int owned = static_cast<int>(ceil_div(fragments, parts));
  // Of more parts than fragments, few get any: large records take the room of the others' reduction
  // buffers.
  const bool wide = matrix.common_record < matrix.largest_record;
  const int stride =
      wide && parts > fragments && parts % fragments == 0 ? std::min(slices, parts / fragments) : 1;
  p.log_buffer_stride = std::countr_zero(static_cast<unsigned>(stride));
  const int reduction_bytes = parts == 1 ? 0 : consumers / stride * parts * owned * 2048;
  p.totals_at = tca_bme::kTileBarrierBytes;
  p.reduction_at = p.totals_at + geometry.total_bytes;
  p.x_at = static_cast<int>(ceil_div(p.reduction_at + reduction_bytes, 1024) * 1024);
  const int64_t room = kSharedBytes - p.x_at;
  const int step_records = geometry.step_records;
  const int64_t x_step =
      int64_t{slices} * geometry.x_rows * tca_bme::kStepUnits * tca_bme::kUnitRowBytes;
  const int64_t steps =
      ceil_div(std::min<int64_t>(ceil_div(spans, parts) * geometry.span_records, p.record_columns),
               int64_t{step_records});
  // The fewest stages of x, and those of records, the best first. Of uneven records, of which each
  // has a stage, more fit as long as none of them is large.
  constexpr int kUnevenStages = 8;
  const int64_t large = tca_bme::record_room(matrix.largest_record);
  const int64_t common = wide ? tca_bme::record_room(matrix.common_record) : large;
  constexpr std::pair<int, int> kStages[] = {{3, 4}, {3, 3}, {3, 2}, {2, 3}, {2, 2}};
  for (const auto& [min_x_stages, stages] : kStages) {
    for (const bool roomy : {true, false}) {  // the same where no record is large
      // At least for one of the largest records; if there is room, for others beside it.
      const int records = stages * step_records;
      const int64_t min_bytes = std::max(large, records * common);
      const int64_t max_bytes = large + (records - 1) * common;
      const int64_t wanted = int64_t{consumers} * (roomy ? max_bytes : min_bytes);
      const int64_t x_stages =
          std::min({(room - wanted) / x_step, steps, int64_t{tca_bme::kMaxStages}});
      if (x_stages < std::min<int64_t>(steps, min_x_stages)) {
        continue;
      }
      plan.wide = wide;
      p.record_bytes = static_cast<int>(common);
      p.ring_bytes = static_cast<int>(
          wide ? std::min(max_bytes, (room - x_stages * x_step) / consumers / 128 * 128)
               : max_bytes);
      p.record_stages = wide ? kUnevenStages : stages;
      p.x_stages = static_cast<int>(x_stages);
      p.x_resident = x_stages == steps && !config.stream_k;
      p.rings_at = static_cast<int>(p.x_at + x_stages * x_step);
      plan.shared_bytes = p.rings_at + consumers * p.ring_bytes;
      return plan;
    }
  }
  return std::nullopt;
}

// How long the product takes, roughly, in microseconds as they were measured on an H200. What a
// unit, 4 chunks, costs a consumer warpgroup is bound by what all of them share, shared memory
// first of all: fewer row blocks at a time take less.
double cost_of(const Plan& plan, const RecordWgmmaConfig& config, const RecordMatrix& matrix,
               int64_t tokens) {
  const TileParameters& p = plan.parameters;
  const Geometry geometry = geometry_of(matrix, config.tile);
  const double slices = geometry.consumers / config.row_blocks;
  const double parts = config.split * slices;
  const double units = p.record_columns / parts * tca_bme::kStepUnits / geometry.step_records;
  const double unit = x_of(matrix, config.tile) == WgmmaX::planes
                          ? (config.tile <= 32 ? 0.5 : 0.65)
                          : (config.tile == 32 ? 0.74 : 0.88) * (matrix.pair ? 0.8 : 1.0);
  const double start = 6.0 + 0.3 * config.split;
  const double exchange = parts > 1 ? 1.5 : 0.5;
  const auto launches =
      static_cast<double>(ceil_div(ceil_div(tokens, config.tile), plan.token_tiles));
  const double rounds =
      config.stream_k
          ? static_cast<double>(p.groups) / p.tile_clusters
          : static_cast<double>(ceil_div(p.row_blocks, p.tile_clusters)) / config.row_blocks;
  const double combining =
      config.stream_k ? 5.0 + static_cast<double>(plan.workspace_bytes) / 2e6 : 0.0;
  return launches * (start + rounds * (units * unit + exchange) + combining);
}

struct Launch {
  WgmmaKernel kernel;
  CombineKernel combine;
  int tile, token_tiles;
};

void launch_plan(const Plan& plan, const Launch& what, const CUtensorMap& x,
                 const ExecContext& ctx) {
  const TileParameters& p = plan.parameters;
  const void* const kernel = reinterpret_cast<const void*>(what.kernel);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  launch(ctx, what.kernel,
         {.blocks = static_cast<unsigned>(p.tile_clusters * what.token_tiles * p.split),
          .threads = static_cast<unsigned>(tca_bme::tile_threads(plan.consumers)),
          .shared_bytes = static_cast<size_t>(plan.shared_bytes),
          .pdl = true,
          .cluster = p.split},
         p, x);
  if (p.partials != nullptr && p.tile_clusters > 1) {
    const int parts = p.group_blocks * (what.tile / 8 / tca_bme::kCombineFragments);
    launch(
        ctx, what.combine,
        {.blocks = dim3(static_cast<unsigned>(p.tile_clusters - 1), static_cast<unsigned>(parts)),
         .threads = 128,
         .pdl = true},
        p);
  }
}

WgmmaKernel kernel_for(const RecordMatrix& matrix, int tile, DType dtype, bool uneven) {
  switch (x_of(matrix, tile)) {
    case WgmmaX::as_it_is:
      return (uneven ? tca_bme::uneven_wgmma_kernel : tca_bme::even_wgmma_kernel)(matrix, tile,
                                                                                  dtype);
    case WgmmaX::planes:
      return tca_bme::byte_wgmma_kernel(matrix, tile, dtype, uneven);
    case WgmmaX::units:
      return tca_bme::widened_wgmma_kernel(matrix, tile, dtype, uneven);
  }
  fail("no kernel for such records");
}

// What the kernel reads of x.
struct PreparedX {
  MappedRows rows;                // of elements of 16 bits
  int64_t tile_rows = 0;          // of a tile of tokens
  int64_t scale_blocks = 0;       // of columns
  const float* scales = nullptr;  // [tiles, blocks, tokens of a tile]
};
// In the workspace, unless it is x itself.
PreparedX prepare_x(const RecordMatrix& matrix, const CudaProductOperands& operands, int tile,
                    const ExecContext& ctx) {
  const tca_bme::XRows x{.data = operands.x,
                         .stride = operands.x_stride,
                         .tokens = operands.tokens,
                         .columns = matrix.columns,
                         .dtype = operands.dtype};
  switch (x_of(matrix, tile)) {
    case WgmmaX::as_it_is:
      break;
    case WgmmaX::planes: {
      tca_bme::XPlanes planes = tca_bme::x_planes_for(x.tokens, x.columns, tile);
      planes.planes = static_cast<uint8_t*>(operands.workspace);
      planes.scales = reinterpret_cast<float*>(planes.planes + planes.plane_bytes());
      make_x_planes(x, planes, ctx);
      return {.rows = {.data = planes.planes,
                       .rows = planes.rows(),
                       .columns = planes.stride / 2,
                       .stride = planes.stride / 2},
              .tile_rows = int64_t{tca_bme::kPlanes} * tile,
              .scale_blocks = planes.blocks,
              .scales = planes.scales};
    }
    case WgmmaX::units: {
      const tca_bme::XUnits units{.stride = tca_bme::x_units_stride(x.columns),
                                  .data = operands.workspace};
      make_x_units(x, units, ctx);
      return {.rows = {.data = units.data,
                       .rows = x.tokens,
                       .columns = units.stride,
                       .stride = units.stride},
              .tile_rows = tile};
    }
  }
  return {.rows = {.data = x.data,
                   .rows = x.tokens,
                   .columns = x.columns,
                   .stride = x.tokens == 1 ? ceil_div(x.columns, kAligned) * kAligned : x.stride},
          .tile_rows = tile};
}

}  // namespace

std::string record_wgmma_name(const RecordWgmmaConfig& config) {
  return fmt::format("tiles of {} tokens, split-K {}, {} row blocks{}", config.tile, config.split,
                     config.row_blocks, config.stream_k ? ", stream-K" : "");
}

bool record_wgmma_takes(const RecordMatrix& matrix, const CudaProductOperands& operands) {
  return matrix.narrow() || (reinterpret_cast<uintptr_t>(operands.x) % 16 == 0 &&
                             (operands.tokens == 1 || operands.x_stride % kAligned == 0));
}

bool record_wgmma_rounds_x(const RecordMatrix& matrix, const RecordWgmmaConfig& config) {
  return x_of(matrix, config.tile) == WgmmaX::planes;
}

bool record_wgmma_fits(const RecordMatrix& matrix, const RecordWgmmaConfig& config) {
  return plan_for(matrix, config, config.tile).has_value();
}

std::vector<RecordWgmmaConfig> record_wgmma_candidates(const RecordMatrix& matrix, int64_t tokens) {
  std::vector<std::pair<double, RecordWgmmaConfig>> found;
  if (matrix.narrow() && tokens > tca_bme::kMaxUnitTokens) {
    return {};
  }
  for (const int tile : tiles_of(matrix)) {
    const bool smallest = tile >= tokens;
    for (int row_blocks = 1; row_blocks <= geometry_of(matrix, tile).consumers; ++row_blocks) {
      for (const int split : {1, 2, 4, 8, 16}) {
        for (const bool stream_k : {false, true}) {
          if (stream_k && tokens > tile) {
            continue;
          }
          const RecordWgmmaConfig config{
              .tile = tile, .split = split, .row_blocks = row_blocks, .stream_k = stream_k};
          if (const std::optional<Plan> plan = plan_for(matrix, config, tokens)) {
            found.emplace_back(cost_of(*plan, config, matrix, tokens), config);
          }
        }
      }
    }
    if (smallest) {
      break;
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RecordWgmmaConfig> configs;
  for (const auto& [cost, config] : found) {
    configs.push_back(config);
  }
  return configs;
}

void record_wgmma_cuda(const RecordMatrix& matrix, const CudaProductOperands& operands,
                       const RecordWgmmaConfig& config, const ExecContext& ctx) {
  require(record_wgmma_takes(matrix, operands), "rows of x that are not aligned to 16 bytes");
  require(operands.dtype == DType::f16 || operands.dtype == DType::bf16,
          "a record kernel computes f16 or bf16, not {}", name_of(operands.dtype));
  if (matrix.rows == 0 || operands.tokens == 0) {
    return;
  }
  const std::optional<Plan> found = plan_for(matrix, config, operands.tokens);
  require(found.has_value(), "no room for {} of records of a matrix of {} x {}",
          record_wgmma_name(config), matrix.rows, matrix.columns);
  Plan plan = *found;
  const bool f16 = operands.dtype == DType::f16;
  Launch what{.kernel = kernel_for(matrix, config.tile, operands.dtype, plan.wide),
              .combine = f16 ? combine_kernel_for<__half>(config.tile)
                             : combine_kernel_for<__nv_bfloat16>(config.tile),
              .tile = config.tile,
              .token_tiles = 0};
  const int64_t workspace_bytes = record_wgmma_workspace_bytes(matrix, config, operands.tokens);
  require(workspace_bytes == 0 || operands.workspace != nullptr,
          "a record kernel without its workspace of {} bytes", workspace_bytes);
  if (plan.workspace_bytes != 0) {
    plan.parameters.partials = static_cast<float4*>(operands.workspace);
  }
  plan.parameters.scales = matrix.scales;
  plan.parameters.group = matrix.group;
  const PreparedX prepared = prepare_x(matrix, operands, config.tile, ctx);
  const int64_t tokens_of_launch = int64_t{plan.token_tiles} * config.tile;
  for (int64_t first = 0; first < operands.tokens; first += tokens_of_launch) {
    const int64_t tokens = std::min(operands.tokens - first, tokens_of_launch);
    TileParameters& p = plan.parameters;
    p.records = matrix.records;
    p.starts = matrix.starts;
    p.y = static_cast<uint16_t*>(operands.y) + first * operands.y_stride;
    p.y_stride = operands.y_stride;
    p.bias = operands.bias;
    // With ordinary launches x is there already: it is requested as soon as the memory is busy.
    p.stages_before_wait = ctx.launches == Launches::overlapping ? p.record_stages : 1;
    p.relu = operands.relu;
    p.rows = static_cast<int>(matrix.rows);
    p.tokens = static_cast<int>(tokens);
    what.token_tiles = static_cast<int>(ceil_div(tokens, config.tile));
    const int64_t first_tile = first / config.tile;
    const int64_t first_row = first_tile * prepared.tile_rows;
    p.x_blocks = static_cast<int>(prepared.scale_blocks);
    p.x_scales = prepared.scales + first_tile * prepared.scale_blocks * config.tile;
    MappedRows rows = prepared.rows;
    rows.data = static_cast<const uint16_t*>(rows.data) + first_row * rows.stride;
    rows.rows = std::min(rows.rows - first_row, what.token_tiles * prepared.tile_rows);
    launch_plan(plan, what, map_rows(rows, static_cast<int>(prepared.tile_rows)), ctx);
  }
}

int64_t record_wgmma_workspace_bytes(const RecordMatrix& matrix, const RecordWgmmaConfig& config,
                                     int64_t tokens) {
  switch (x_of(matrix, config.tile)) {
    case WgmmaX::as_it_is:
      break;
    case WgmmaX::planes:
      return tca_bme::x_planes_for(tokens, matrix.columns, config.tile).bytes();
    case WgmmaX::units:
      return tca_bme::x_units_bytes(tokens, matrix.columns);
  }
  return config.stream_k ? tca_bme::stream_k_bytes(config.tile, matrix.clusters.front()) : 0;
}

}  // namespace sparsellm
