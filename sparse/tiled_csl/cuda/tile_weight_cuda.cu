#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "sparse/copy_buffer.h"
#include "sparse/cuda_notices.h"
#include "sparse/cuda_product_checks.h"
#include "sparse/expand_matmul.h"
#include "sparse/tiled_csl/cuda/tile_expand_cuda.h"
#include "sparse/tiled_csl/cuda/tile_weight.cuh"
#include "sparse/tiled_csl/cuda/tile_weight_cuda.h"
#include "sparse/tiled_csl/cuda/tile_workspace.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tuned_plans.cuh"

namespace sparsellm::tiled_csl {
namespace {

// Of x, as tile_gemm_cuda() takes it.
int64_t words_in_order(int64_t columns, int64_t tokens) {
  return tile_gemm_workspace_bytes(columns, tokens) / size_of(DType::f32);
}

int tiles_for_key(const TileMatrix& matrix) {
  const std::optional<TileMatmulConfig> rule = tile_matmul_rule(matrix, 1);
  return rule ? rule->tiles : 0;
}

}  // namespace

CudaTileWeight::CudaTileWeight(DeviceTiles parts, DType dtype, int64_t rows, int64_t columns)
    : dtype_(dtype),
      parts_(std::move(parts)),
      matrix_{.records = static_cast<const uint8_t*>(parts_.records.data()),
              .starts = static_cast<const uint32_t*>(parts_.starts.data()),
              .rows = rows,
              .columns = columns,
              .largest_record = parts_.largest_record,
              .multiprocessors = tile_matmul_multiprocessors(parts_.starts.device()),
              .multistage = tile_multistage_device(parts_.starts.device())},
      percent_(percent_for_key(parts_.nonzeros, rows * columns)),
      tiles_(tiles_for_key(matrix_)) {}

std::string_view CudaTileWeight::format() const { return kName; }

void CudaTileWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                            ExecContext& ctx) const {
  check_cuda_product(*this, x, y, epilogue, ctx);
  if (y.element_count() > 0) {
    run(plan_for(y.dtype(), x.size(0), ctx), x, y, epilogue, ctx);
  }
}

void CudaTileWeight::run(const TilePlan& plan, const Tensor& x, const Tensor& y,
                         const Epilogue& epilogue, ExecContext& ctx) const {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    expand_matmul(
        {.weight = *this, .piece_rows = expansion->piece_rows, .overlapped = expansion->overlapped},
        x, y, epilogue, ctx);
    return;
  }
  const Activation::Kind kind = epilogue.activation.kind;
  const auto& config = std::get<TileMatmulConfig>(plan);
  auto scratch = ctx.workspace.scope();
  void* workspace = nullptr;
  if (config.gemm) {
    workspace = scratch.tensor(DType::f32, {words_in_order(in(), x.size(0))}).raw();
  }
  tile_matmul_cuda(matrix_,
                   {.x = x.raw(),
                    .x_stride = x.row_stride(),
                    .y = y.raw(),
                    .y_stride = y.row_stride(),
                    .bias = epilogue.bias.raw(),
                    .relu = kind == Activation::Kind::relu,
                    .tokens = x.size(0),
                    .dtype = dtype_,
                    .workspace = workspace},
                   config, ctx);
  if (kind != Activation::Kind::none && kind != Activation::Kind::relu) {
    activate(epilogue.activation, y, ctx);
  }
}

void CudaTileWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  check_cuda_expansion(*this, rows, dense, ctx);
  tile_expand_cuda(matrix_, rows, dense.raw(), ctx);
}

int64_t CudaTileWeight::workspace_bytes(int64_t tokens, Sums) const {
  return tiles_workspace_bytes(out(), in(), tokens);
}

std::string CudaTileWeight::notice() const {
  if (matrix_.multiprocessors != 0) {  // the kernels that are measured
    return {};
  }
  const Device device = parts_.records.device();
  return tile_multistage_fits(matrix_) ? unmeasured_notice(kName, device)
                                       : expansion_notice(kName, device);
}

std::unique_ptr<WeightMatrix> CudaTileWeight::copy() const {
  return std::make_unique<CudaTileWeight>(DeviceTiles{.nonzeros = parts_.nonzeros,
                                                      .largest_record = parts_.largest_record,
                                                      .starts = copy_of(parts_.starts),
                                                      .records = copy_of(parts_.records)},
                                          dtype_, out(), in());
}

std::string CudaTileWeight::plan_text(DType y, int64_t tokens, const ExecContext& ctx) const {
  return to_text(plan_for(y, tokens, ctx));
}

TileKey CudaTileWeight::key(DType y, int64_t tokens, Launches launches) const {
  return {.rows = matrix_.rows,
          .columns = matrix_.columns,
          .percent = percent_,
          .tiles = tiles_,
          .dtype = dtype_,
          .y = y,
          .tokens = tokens,
          .launches = launches};
}

TilePlan CudaTileWeight::plan_for(DType y, int64_t tokens, const ExecContext& ctx) const {
  if (ctx.sums == Sums::batch_invariant) {
    // The order of sums is that of the configuration. There is none for another dtype.
    const std::optional<TileMatmulConfig> config =
        y == dtype_ ? tile_matmul_for_any_tokens(matrix_) : std::nullopt;
    return config ? TilePlan(*config) : TilePlan(single_piece_expansion(out(), in()));
  }
  const TilePlan* const tuned = tuned_plan(*this, y, tokens, ctx);
  return tuned != nullptr ? *tuned : rule_plan(y, tokens);
}

TilePlan CudaTileWeight::rule_plan(DType y, int64_t tokens) const {
  if (y == dtype_) {
    if (const std::optional<TileMatmulConfig> config = tile_matmul_rule(matrix_, tokens)) {
      return *config;
    }
  }
  return overlaps_pieces(tokens) ? Expansion{.piece_rows = expand_piece_rows(out(), in(), tokens)}
                                 : single_piece_expansion(out(), in());
}

bool CudaTileWeight::overlaps_pieces(int64_t max_tokens) const {
  return max_tokens > kMaxSinglePieceTokens;
}

bool CudaTileWeight::fits(const TilePlan& plan, DType y, int64_t tokens) const {
  const auto* const config = std::get_if<TileMatmulConfig>(&plan);
  return config == nullptr || (y == dtype_ && tile_matmul_fits(matrix_, *config, tokens));
}

std::unique_ptr<WeightMatrix> load_tiles_cuda(const RecordUploads& parts, const LoadContext& ctx) {
  int64_t rows = 0;
  DeviceTiles made;
  for (const auto& part : parts) {
    rows += part->rows();
    made.nonzeros += part->stated_nonzeros();
  }
  const std::vector<uint32_t> starts = joined_starts(parts);
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    made.largest_record =
        std::max(made.largest_record, int64_t{starts[i + 1] - starts[i]} * kRecordAlignment);
  }
  made.starts =
      Buffer(ctx.device, std::ssize(starts) * int64_t{sizeof(uint32_t)}, "an encoded weight");
  made.records = Buffer(ctx.device, int64_t{starts.back()} * kRecordAlignment, "an encoded weight");
  copy_bytes(ctx.device, made.starts.data(), {}, starts.data(), made.starts.bytes());
  submit_records(parts, static_cast<std::byte*>(made.records.data()), *ctx.uploads);
  return std::make_unique<CudaTileWeight>(std::move(made), parts.front()->dtype(), rows,
                                          parts.front()->columns());
}

std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, ExecContext& ctx) {
  return std::make_unique<CudaTileWeight>(encode_tiles_cuda(w, ctx), w.dtype(), w.size(0),
                                          w.size(1));
}

}  // namespace sparsellm::tiled_csl
