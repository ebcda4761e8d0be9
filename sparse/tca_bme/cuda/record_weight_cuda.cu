#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/cuda_state.cuh"
#include "sparse/copy_buffer.h"
#include "sparse/cuda_notices.h"
#include "sparse/cuda_product_checks.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_encode_cuda.h"
#include "sparse/tca_bme/cuda/record_expand_cuda.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_multistage_cuda.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/cuda/record_weight_cuda.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "sparse/tuned_plans.cuh"

namespace sparsellm::tca_bme {
namespace {

constexpr int64_t kTokensOfATile = 64;  // of one launch
// From kMinWgmmaTokens to here warpgroups are taken where nothing was measured.
constexpr int64_t kMaxWgmmaRuleTokens = 1024;
constexpr int64_t kMaxNarrowWgmmaRuleTokens = 512;
constexpr int64_t kAligned = 8;  // elements of 16 bytes

RecordMatrix matrix_of(const RecordLayout& layout, int64_t rows, int64_t columns, Device device) {
  return {.records = nullptr,
          .starts = nullptr,
          .rows = rows,
          .columns = columns,
          .chunks = layout.chunks,
          .pair = layout.pairs(),
          .clusters = count_clusters(device),
          .multistage = multistage_device(device)};
}

RecordMatrix matrix_of(const QuantizedLayout& layout, int64_t rows, int64_t columns,
                       Device device) {
  RecordMatrix matrix = matrix_of(RecordLayout{.chunks = QuantizedLayout::kColumns / kChunkColumns},
                                  rows, columns, device);
  matrix.elements = elements_of(layout.values);
  matrix.chunk_offsets = layout.offsets;
  matrix.group = layout.group;
  return matrix;
}

bool is_dense(const RecordMatrix& matrix) { return matrix.chunk_offsets == 0; }

Buffer on_device(Device device, const void* data, int64_t bytes) {
  Buffer buffer(device, bytes, "an encoded weight");
  copy_bytes(device, buffer.data(), {}, data, bytes);
  return buffer;
}

DeviceRecords memory_for(const RecordLayout& layout, std::span<const uint32_t> starts,
                         const RecordGrid& grid, Device device) {
  DeviceRecords made{
      .layout = layout,
      .nonzeros = 0,
      .sizes = record_sizes(starts, grid),
      .starts = Buffer(device, std::ssize(starts) * int64_t{sizeof(uint32_t)}, "an encoded weight"),
      .records = Buffer(device, int64_t{starts.back()} * kRecordAlignment, "an encoded weight")};
  copy_bytes(device, made.starts.data(), {}, starts.data(), made.starts.bytes());
  return made;
}

}  // namespace

CudaRecordWeight::CudaRecordWeight(DeviceRecords parts, DType dtype, int64_t rows, int64_t columns)
    : dtype_(dtype),
      starts_(std::move(parts.starts)),
      records_(std::move(parts.records)),
      matrix_(matrix_of(parts.layout, rows, columns, records_.device())),
      nonzeros_(parts.nonzeros),
      percent_(percent_for_key(parts.nonzeros, rows * columns)) {
  complete(parts.sizes);
}

CudaRecordWeight::CudaRecordWeight(DeviceQuantized parts, DType dtype, int64_t rows,
                                   int64_t columns)
    : dtype_(dtype),
      starts_(std::move(parts.starts)),
      records_(std::move(parts.records)),
      scales_(std::move(parts.scales)),
      matrix_(matrix_of(parts.layout, rows, columns, records_.device())),
      nonzeros_(parts.nonzeros),
      percent_(parts.layout.dense() ? 0 : percent_for_key(parts.nonzeros, rows * columns)) {
  complete(parts.sizes);
}

void CudaRecordWeight::complete(const RecordSizes& sizes) {
  matrix_.largest_record = sizes.largest;
  matrix_.common_record = sizes.common;
  shares_ = record_shares(sizes.block_starts, matrix_.clusters);
  point_to_own_memory();
}

CudaRecordWeight::CudaRecordWeight(const CudaRecordWeight& other)
    : dtype_(other.dtype_),
      starts_(copy_of(other.starts_)),
      records_(copy_of(other.records_)),
      scales_(copy_of(other.scales_)),
      shares_(other.shares_),
      matrix_(other.matrix_),
      nonzeros_(other.nonzeros_),
      percent_(other.percent_) {
  point_to_own_memory();
}

void CudaRecordWeight::point_to_own_memory() {
  matrix_.starts = static_cast<const uint32_t*>(starts_.data());
  matrix_.records = static_cast<const uint8_t*>(records_.data());
  matrix_.scales = static_cast<const float*>(scales_.data());
  matrix_.shares = &shares_;
}

std::unique_ptr<WeightMatrix> CudaRecordWeight::copy() const {
  return std::unique_ptr<WeightMatrix>(new CudaRecordWeight(*this));
}

std::string_view CudaRecordWeight::format() const {
  return !is_dense(matrix_) ? kName : matrix_.elements == RecordElements::i4 ? kDenseI4 : kDenseI8;
}

std::string CudaRecordWeight::notice() const {
  const bool expanded = record_matmul_candidates(matrix_, 1).empty();
  if (matrix_.clusters_of(1) != 0 && !expanded) {  // the kernels that are measured
    return {};
  }
  return expanded ? expansion_notice(format(), records_.device())
                  : unmeasured_notice(format(), records_.device());
}

RecordKey CudaRecordWeight::key(DType y, int64_t tokens, Launches launches) const {
  return {.rows = matrix_.rows,
          .columns = matrix_.columns,
          .chunks = matrix_.chunks,
          .pair = matrix_.pair,
          .elements = matrix_.elements,
          .dense = is_dense(matrix_),
          .percent = percent_,
          .uneven = matrix_.common_record < matrix_.largest_record,
          .dtype = dtype_,
          .y = y,
          .tokens = tokens,
          .launches = launches};
}

double CudaRecordWeight::input_rounding(DType y, int64_t tokens, const ExecContext& ctx) const {
  const RecordPlan plan = plan_for(y, tokens, ctx);
  const auto* const decoding = std::get_if<RecordMatmulConfig>(&plan);
  const auto* const by_warpgroups = std::get_if<RecordWgmmaConfig>(&plan);
  const bool rounds = (decoding != nullptr && decoding->bytes) ||
                      (by_warpgroups != nullptr && record_wgmma_rounds_x(matrix_, *by_warpgroups));
  return rounds ? kRecordInputRounding : 0.0;
}

std::string CudaRecordWeight::plan_text(DType y, int64_t tokens, const ExecContext& ctx) const {
  return to_text(plan_for(y, tokens, ctx));
}

RecordPlan CudaRecordWeight::plan_for(DType y, int64_t tokens, const ExecContext& ctx) const {
  if (ctx.sums == Sums::batch_invariant) {
    // The order of sums is that of the configuration. There is none for another dtype.
    const std::vector<RecordMatmulConfig> configs = configs_for(y, kTokensOfATile);
    return configs.empty() ? RecordPlan(rule_expansion(1)) : RecordPlan(configs.front());
  }
  const RecordPlan* const tuned = tuned_plan(*this, y, tokens, ctx);
  return tuned != nullptr ? *tuned : rule_plan(y, tokens);
}

bool CudaRecordWeight::fits(const RecordPlan& plan, DType y, int64_t tokens) const {
  if (y != dtype_) {
    return std::holds_alternative<Expansion>(plan);
  }
  if (const auto* config = std::get_if<RecordMatmulConfig>(&plan)) {
    return record_matmul_fits(matrix_, *config, tokens);
  }
  const auto* const config = std::get_if<RecordWgmmaConfig>(&plan);
  return config == nullptr || record_wgmma_fits(matrix_, *config);
}

std::vector<RecordMatmulConfig> CudaRecordWeight::configs_for(DType y, int64_t tokens) const {
  return y == dtype_ ? record_matmul_candidates(matrix_, tokens)
                     : std::vector<RecordMatmulConfig>();
}

std::vector<RecordWgmmaConfig> CudaRecordWeight::wgmma_configs_for(DType y, int64_t tokens) const {
  const bool bytes = matrix_.elements == RecordElements::i8;
  const bool aligned = matrix_.narrow() || in() % kAligned == 0;
  const bool taken = tokens >= (bytes ? kMinPlaneTokens : kMinWgmmaTokens) && aligned;
  return y == dtype_ && taken ? record_wgmma_candidates(matrix_, tokens)
                              : std::vector<RecordWgmmaConfig>();
}

RecordPlan CudaRecordWeight::rule_plan(DType y, int64_t tokens) const {
  const int64_t most = matrix_.narrow() ? kMaxNarrowWgmmaRuleTokens : kMaxWgmmaRuleTokens;
  if (tokens >= kMinWgmmaTokens && tokens <= most) {
    const std::vector<RecordWgmmaConfig> configs = wgmma_configs_for(y, tokens);
    if (!configs.empty()) {
      return configs.front();
    }
  }
  return rule_plan_for_any_x(y, tokens);
}

RecordPlan CudaRecordWeight::rule_plan_for_any_x(DType y, int64_t tokens) const {
  if (tokens <= kMaxDecodedTokens) {
    const std::vector<RecordMatmulConfig> configs = configs_for(y, tokens);
    if (!configs.empty()) {
      return configs.front();
    }
  }
  return rule_expansion(tokens);
}

Expansion CudaRecordWeight::rule_expansion(int64_t tokens) const {
  return overlaps_pieces(tokens) ? Expansion{.piece_rows = expand_piece_rows(out(), in(), tokens)}
                                 : single_piece_expansion(out(), in());
}

bool CudaRecordWeight::overlaps_pieces(int64_t max_tokens) const {
  return tca_bme::overlaps_pieces(matrix_, max_tokens);
}

void CudaRecordWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                              ExecContext& ctx) const {
  check_cuda_product(*this, x, y, epilogue, ctx);
  if (y.element_count() > 0) {
    run(plan_for(y.dtype(), x.size(0), ctx), x, y, epilogue, ctx);
  }
}

void CudaRecordWeight::run(const RecordPlan& plan, const Tensor& x, const Tensor& y,
                           const Epilogue& epilogue, ExecContext& ctx) const {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    expand_matmul(
        {.weight = *this, .piece_rows = expansion->piece_rows, .overlapped = expansion->overlapped},
        x, y, epilogue, ctx);
    return;
  }
  const Activation::Kind kind = epilogue.activation.kind;
  CudaProductOperands operands{.x = x.raw(),
                               .x_stride = x.row_stride(),
                               .y = y.raw(),
                               .y_stride = y.row_stride(),
                               .bias = epilogue.bias.raw(),
                               .relu = kind == Activation::Kind::relu,
                               .tokens = x.size(0),
                               .dtype = dtype_};
  if (const auto* config = std::get_if<RecordWgmmaConfig>(&plan)) {
    if (!record_wgmma_takes(matrix_, operands)) {
      run(rule_plan_for_any_x(y.dtype(), x.size(0)), x, y, epilogue, ctx);
      return;
    }
    auto scratch = ctx.workspace.scope();
    const int64_t words = ceil_div(record_wgmma_workspace_bytes(matrix_, *config, x.size(0)), 4);
    operands.workspace = scratch.tensor(DType::f32, {words}).raw();
    record_wgmma_cuda(matrix_, operands, *config, ctx);
  } else {
    decode(std::get<RecordMatmulConfig>(plan), operands, ctx);
  }
  if (kind != Activation::Kind::none && kind != Activation::Kind::relu) {
    activate(epilogue.activation, y, ctx);
  }
}

void CudaRecordWeight::decode(const RecordMatmulConfig& config, CudaProductOperands operands,
                              ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  const int64_t words = ceil_div(record_matmul_workspace_bytes(matrix_, operands.tokens), 4);
  operands.workspace = scratch.tensor(DType::f32, {words}).raw();
  record_matmul_cuda(matrix_, operands, config, ctx);
}

void CudaRecordWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  check_cuda_expansion(*this, rows, dense, ctx);
  record_expand_cuda(matrix_, rows, dense.raw(), dtype_, cuda_state(ctx).multiprocessors, ctx);
}

int64_t CudaRecordWeight::workspace_bytes(int64_t tokens, Sums sums) const {
  return records_workspace_bytes(matrix_, tokens, sums);
}

std::unique_ptr<WeightMatrix> load_records_cuda(const RecordUploads& parts,
                                                const LoadContext& ctx) {
  const RecordLayout layout = parts.front()->checker().layout();
  const int64_t columns = parts.front()->columns();
  int64_t rows = 0;
  int64_t nonzeros = 0;
  for (const auto& part : parts) {
    rows += part->rows();
    nonzeros += part->stated_nonzeros();
  }
  DeviceRecords made =
      memory_for(layout, joined_starts(parts), record_grid(rows, columns, layout), ctx.device);
  made.nonzeros = nonzeros;
  submit_records(parts, static_cast<std::byte*>(made.records.data()), *ctx.uploads);
  return std::make_unique<CudaRecordWeight>(std::move(made), parts.front()->dtype(), rows, columns);
}

std::unique_ptr<WeightMatrix> load_quantized_cuda(const QuantizedUploads& parts,
                                                  const LoadContext& ctx) {
  const QuantizedLayout layout = parts.front()->checker().layout();
  const int64_t columns = parts.front()->columns();
  std::vector<float> scales;
  int64_t rows = 0;
  int64_t nonzeros = 0;
  for (const auto& part : parts) {
    rows += part->rows();
    nonzeros += part->stated_nonzeros();
    const std::span<const float> all = part->checker().scales();
    if (!all.empty()) {
      const auto first = all.begin() + part->row_range().begin;
      scales.insert(scales.end(), first, first + part->rows());
    }
  }
  const std::vector<uint32_t> starts = joined_starts(parts);
  DeviceQuantized made{
      .layout = layout,
      .nonzeros = nonzeros,
      .sizes = record_sizes(starts, quantized_grid(rows, columns)),
      .starts =
          on_device(ctx.device, starts.data(), std::ssize(starts) * int64_t{sizeof(uint32_t)}),
      .records = Buffer(ctx.device, int64_t{starts.back()} * kRecordAlignment, "an encoded weight"),
      .scales = on_device(ctx.device, scales.data(), std::ssize(scales) * int64_t{sizeof(float)})};
  submit_records(parts, static_cast<std::byte*>(made.records.data()), *ctx.uploads);
  return std::make_unique<CudaRecordWeight>(std::move(made), parts.front()->dtype(), rows, columns);
}

std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, RecordsFor goal,
                                                 ExecContext& ctx) {
  return std::make_unique<CudaRecordWeight>(encode_records_cuda(w, goal, ctx), w.dtype(), w.size(0),
                                            w.size(1));
}

std::unique_ptr<WeightMatrix> encode_quantized_weight_cuda(const Tensor& w, std::string_view format,
                                                           const QuantizedChoice& values,
                                                           ExecContext& ctx) {
  return std::make_unique<CudaRecordWeight>(
      encode_quantized_cuda(quantize_cuda(w, values.type, values.group, ctx), format, ctx),
      w.dtype(), w.size(0), w.size(1));
}

}  // namespace sparsellm::tca_bme
