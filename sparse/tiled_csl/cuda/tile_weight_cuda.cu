#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/cuda_state.cuh"
#include "sparse/copy_buffer.h"
#include "sparse/cuda_notices.h"
#include "sparse/cuda_product_checks.h"
#include "sparse/expand_matmul.h"
#include "sparse/tiled_csl/cuda/tile_encode_cuda.h"
#include "sparse/tiled_csl/cuda/tile_expand_cuda.h"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_weight_cuda.h"
#include "sparse/tiled_csl/tiled_csl.h"

namespace sparsellm::tiled_csl {
namespace {

// More tokens are not worth extracting the tiles again for every 128 of them.
constexpr int64_t kMaxExtractedTokens = 128;
// Pieces that overlap take more memory than all else in a step of few tokens.
constexpr int64_t kMaxSinglePieceTokens = 1024;

int64_t workspace_bytes_of(int64_t rows, int64_t columns, int64_t tokens) {
  const int64_t single = expand_single_piece_workspace_bytes(rows, columns);
  return tokens <= kMaxSinglePieceTokens
             ? single
             : std::max(single, expand_matmul_workspace_bytes(rows, columns));
}

class CudaTileWeight : public WeightMatrix {
 public:
  // The records may not have their values yet.
  CudaTileWeight(DeviceTiles parts, DType dtype, int64_t rows, int64_t columns)
      : dtype_(dtype),
        parts_(std::move(parts)),
        matrix_{.records = static_cast<const uint8_t*>(parts_.records.data()),
                .starts = static_cast<const uint32_t*>(parts_.starts.data()),
                .rows = rows,
                .columns = columns,
                .largest_record = parts_.largest_record,
                .multiprocessors = tile_matmul_multiprocessors(parts_.starts.device()),
                .multistage = tile_multistage_device(parts_.starts.device())} {}

  std::string_view format() const override { return kName; }
  int64_t out() const override { return matrix_.rows; }
  int64_t in() const override { return matrix_.columns; }
  DType dtype() const override { return dtype_; }
  int64_t bytes() const override { return parts_.starts.bytes() + parts_.records.bytes(); }
  std::optional<int64_t> nonzeros() const override { return parts_.nonzeros; }

  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
              ExecContext& ctx) const override {
    check_cuda_product(*this, x, y, epilogue, ctx);
    if (y.element_count() == 0) {
      return;
    }
    const std::optional<TileMatmulConfig> config = config_for(y.dtype(), x.size(0), ctx.sums);
    if (!config) {
      expand_matmul(expansion_for(x.size(0)), x, y, epilogue, ctx);
      return;
    }
    const Activation::Kind kind = epilogue.activation.kind;
    tile_matmul_cuda(matrix_,
                     {.x = x.raw(),
                      .x_stride = x.row_stride(),
                      .y = y.raw(),
                      .y_stride = y.row_stride(),
                      .bias = epilogue.bias.raw(),
                      .relu = kind == Activation::Kind::relu,
                      .tokens = x.size(0),
                      .dtype = dtype_},
                     *config, ctx);
    if (kind != Activation::Kind::none && kind != Activation::Kind::relu) {
      activate(epilogue.activation, y, ctx);
    }
  }

  void expand(Range rows, Tensor dense, ExecContext& ctx) const override {
    check_cuda_expansion(*this, rows, dense, ctx);
    tile_expand_cuda(matrix_, rows, dense.raw(), ctx);
  }

  int64_t workspace_bytes(int64_t tokens, Sums) const override {
    return workspace_bytes_of(out(), in(), tokens);
  }

  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }

  std::string notice() const override {
    if (matrix_.multiprocessors != 0) {  // the kernels that are measured
      return {};
    }
    const Device device = parts_.records.device();
    return tile_multistage_fits(matrix_) ? unmeasured_notice(kName, device)
                                         : expansion_notice(kName, device);
  }

  std::unique_ptr<WeightMatrix> copy() const override {
    return std::make_unique<CudaTileWeight>(DeviceTiles{.nonzeros = parts_.nonzeros,
                                                        .largest_record = parts_.largest_record,
                                                        .starts = copy_of(parts_.starts),
                                                        .records = copy_of(parts_.records)},
                                            dtype_, out(), in());
  }

  std::string plan_text(DType y, int64_t tokens, const ExecContext& ctx) const override {
    const std::optional<TileMatmulConfig> config = config_for(y, tokens, ctx.sums);
    return config ? fmt::format("extract {}", tile_matmul_name(*config))
                  : fmt::format("expand {}", expansion_for(tokens).piece_rows);
  }

 private:
  // None: the weight is expanded.
  std::optional<TileMatmulConfig> config_for(DType y, int64_t tokens, Sums sums) const {
    if (y != dtype_) {
      return std::nullopt;
    }
    if (sums == Sums::batch_invariant) {  // the order of sums is that of the configuration
      return tile_matmul_for_any_tokens(matrix_);
    }
    return tokens <= kMaxExtractedTokens ? tile_matmul_rule(matrix_, tokens) : std::nullopt;
  }
  ExpandMatmul expansion_for(int64_t tokens) const {
    return tokens <= kMaxSinglePieceTokens
               ? ExpandMatmul{.weight = *this,
                              .piece_rows = expand_single_piece_rows(out(), in()),
                              .overlapped = false}
               : ExpandMatmul{.weight = *this,
                              .piece_rows = expand_piece_rows(out(), in(), tokens)};
  }

  DType dtype_;
  DeviceTiles parts_;
  TileMatrix matrix_;  // of these
};

}  // namespace

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

int64_t tiles_workspace_bytes_cuda(const EncodedWeight& e, int64_t tokens) {
  return workspace_bytes_of(e.rows, e.columns, tokens);
}

}  // namespace sparsellm::tiled_csl
