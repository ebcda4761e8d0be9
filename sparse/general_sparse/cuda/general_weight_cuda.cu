#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/cuda_state.cuh"
#include "kernels/base/upload.h"
#include "sparse/cuda_notices.h"
#include "sparse/cuda_product_checks.h"
#include "sparse/expand_matmul.h"
#include "sparse/format.h"
#include "sparse/general_sparse/cuda/encode_cuda.h"
#include "sparse/general_sparse/cuda/expand_cuda.h"
#include "sparse/general_sparse/cuda/general_weight.cuh"
#include "sparse/general_sparse/cuda/general_weight_cuda.h"
#include "sparse/general_sparse/cuda/general_workspace.h"
#include "sparse/general_sparse/cuda/row_weight.h"
#include "sparse/general_sparse/cuda/slice_plan.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/tuned_plans.cuh"

namespace sparsellm::general_sparse {
namespace {

// Of a weight with so few nonzeros that its rows are multiplied sooner than a dense weight is.
constexpr int64_t kMostTokensOfFewNonzeros = 1024;
constexpr int64_t kFewNonzeros = 200;  // one in this many elements, or fewer

int64_t most_row_tokens(const DeviceEncoding& e) {
  return e.nonzeros <= e.rows * e.columns / kFewNonzeros ? kMostTokensOfFewNonzeros
                                                         : kMostKernelTokens;
}

int attribute(cudaDeviceAttr which, const Device& device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device.index));
  return value;
}

std::optional<SliceWeight> slice_weight(const DeviceEncoding& e) {
  if (!has_slice_kernels(e.layout, e.dtype)) {
    return std::nullopt;
  }
  const ChunkGrid grid(e.layout, e.rows, e.columns);
  const Device device = e.values.device();
  SliceWeight weight{.matrix = {},
                     .layout = e.layout,
                     .dtype = e.dtype,
                     .schedules = static_cast<const uint32_t*>(e.schedules.data()),
                     .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
                     .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
  weight.shares = scheduled_shares(weight.multiprocessors, grid.slices());
  weight.matrix = {.row_order = static_cast<const uint16_t*>(e.row_order.data()),
                   .positions = static_cast<const uint8_t*>(e.positions.data()),
                   .values = static_cast<const uint8_t*>(e.values.data()),
                   .border_positions = static_cast<const uint16_t*>(e.border_positions.data()),
                   .rows = static_cast<int>(e.rows),
                   .columns = static_cast<int>(e.columns),
                   .panel_columns = static_cast<int>(grid.panel_columns()),
                   .panels = static_cast<int>(grid.panels()),
                   .slices = grid.slices()};
  return weight;
}

template <class T>
Buffer values_to_device(const std::vector<T>& values, const Device& device) {
  return to_device(std::as_bytes(std::span(values)), device);
}

// Copies a part, whose encoding lives as long as the copies are held.
Buffer upload_part(const std::shared_ptr<EncodedWeight>& e, std::string_view name,
                   const LoadContext& ctx) {
  const std::span<const std::byte> bytes = e->part(name).bytes;
  Buffer buffer(ctx.device, std::ssize(bytes), "an encoded weight");
  for (size_t at = 0; at < bytes.size(); at += Uploader::kPieceBytes) {
    const auto piece =
        bytes.subspan(at, std::min<size_t>(bytes.size() - at, Uploader::kPieceBytes));
    ctx.uploads->submit({.what = e->format,
                         .source = piece,
                         .from = DType::u8,
                         .destination = static_cast<std::byte*>(buffer.data()) + at,
                         .to = DType::u8,
                         .check = [e](std::span<const std::byte>) {}});
  }
  return buffer;
}

}  // namespace

CudaGeneralWeight::CudaGeneralWeight(DeviceEncoding encoding)
    : encoding_(std::move(encoding)),
      kernels_{.slices = slice_weight(encoding_), .rows = row_weight(encoding_)},
      percent_(percent_for_key(encoding_.nonzeros, encoding_.rows * encoding_.columns)) {}

void CudaGeneralWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                               ExecContext& ctx) const {
  check_cuda_product(*this, x, y, epilogue, ctx);
  if (y.element_count() > 0) {
    run(plan_for(y.dtype(), x.size(0), ctx), x, y, epilogue, ctx);
  }
}

void CudaGeneralWeight::run(const ProductPlan& plan, const Tensor& x, const Tensor& y,
                            const Epilogue& epilogue, ExecContext& ctx) const {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    expand_matmul(
        {.weight = *this, .piece_rows = expansion->piece_rows, .overlapped = expansion->overlapped},
        x, y, epilogue, ctx);
    return;
  }
  const Activation::Kind kind = epilogue.activation.kind;
  const bool relu = kind == Activation::Kind::relu;
  if (const auto* rows = std::get_if<RowConfig>(&plan)) {
    row_matmul(*kernels_.rows, {.x = x, .y = y, .bias = epilogue.bias.raw(), .relu = relu}, *rows,
               ctx);
  } else {
    multiply_slices(std::get<SliceConfig>(plan), x, y, epilogue.bias.raw(), relu, ctx);
  }
  if (kind != Activation::Kind::none && kind != Activation::Kind::relu) {
    activate(epilogue.activation, y, ctx);
  }
}

void CudaGeneralWeight::multiply_slices(const SliceConfig& config, const Tensor& x, const Tensor& y,
                                        const void* bias, bool relu, ExecContext& ctx) const {
  const SliceWeight& slices = *kernels_.slices;
  const int64_t partials = slice_workspace_bytes(out(), slices.matrix.panels, x.size(0));
  auto scratch = ctx.workspace.scope();
  slice_product_cuda(
      slices,
      {.x = x.raw(),
       .x_stride = x.row_stride(),
       .y = y.raw(),
       .y_stride = y.row_stride(),
       .bias = bias,
       .relu = relu,
       .tokens = x.size(0),
       .dtype = dtype(),
       .workspace = partials == 0 ? nullptr : scratch.tensor(DType::u8, {partials}).raw()},
      config, ctx);
}

void CudaGeneralWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  check_cuda_expansion(*this, rows, dense, ctx);
  expand_cuda(encoding_, rows, dense.raw(), ctx);
}

int64_t CudaGeneralWeight::workspace_bytes(int64_t tokens, Sums sums) const {
  if (kernels_.slices) {
    return slices_or_expansion_bytes(out(), in(), kernels_.slices->matrix.panels, tokens);
  }
  int64_t bytes = 0;
  if (kernels_.rows) {
    bytes = row_matmul_workspace_bytes(
        *kernels_.rows, in(),
        sums == Sums::batch_invariant ? tokens : std::min(tokens, most_row_tokens(encoding_)));
  }
  return with_expansion(bytes, out(), in(), tokens);
}

std::string CudaGeneralWeight::notice() const {
  return kernels_.slices || kernels_.rows ? std::string()
                                          : expansion_notice(kName, encoding_.values.device());
}

std::unique_ptr<WeightMatrix> CudaGeneralWeight::copy() const {
  return std::make_unique<CudaGeneralWeight>(encoding_.copied());
}

std::string CudaGeneralWeight::plan_text(DType y, int64_t tokens, const ExecContext& ctx) const {
  return to_text(plan_for(y, tokens, ctx));
}

ProductKey CudaGeneralWeight::key(DType y, int64_t tokens, Launches launches) const {
  return {.rows = out(),
          .columns = in(),
          .percent = percent_,
          .layout = to_text(encoding_.layout),
          .dtype = dtype(),
          .y = y,
          .tokens = tokens,
          .launches = launches};
}

ProductPlan CudaGeneralWeight::plan_for(DType y, int64_t tokens, const ExecContext& ctx) const {
  if (ctx.sums == Sums::batch_invariant) {
    return plan_for_any_tokens(y);
  }
  const ProductPlan* const tuned = tuned_plan(*this, y, tokens, ctx);
  return tuned != nullptr ? *tuned : rule_plan(y, tokens);
}

// The order of sums is that of the encoding and of the configuration. There is none for another
// dtype.
ProductPlan CudaGeneralWeight::plan_for_any_tokens(DType y) const {
  if (y == dtype() && kernels_.slices) {
    if (const std::optional<SliceConfig> config = slice_for_any_tokens(*kernels_.slices)) {
      return *config;
    }
  }
  return y == dtype() && kernels_.rows ? ProductPlan(row_for_any_tokens(*kernels_.rows))
                                       : ProductPlan(single_piece_expansion(out(), in()));
}

ProductPlan CudaGeneralWeight::rule_plan(DType y, int64_t tokens) const {
  if (y == dtype() && kernels_.slices && tokens <= kMostKernelTokens) {
    if (const std::optional<SliceConfig> config = slice_rule(*kernels_.slices, tokens)) {
      return *config;
    }
  }
  if (y == dtype() && kernels_.rows && tokens <= most_row_tokens(encoding_)) {
    return row_rule(*kernels_.rows, tokens);
  }
  return overlaps_pieces(tokens) ? Expansion{.piece_rows = expand_piece_rows(out(), in(), tokens)}
                                 : single_piece_expansion(out(), in());
}

bool CudaGeneralWeight::overlaps_pieces(int64_t max_tokens) const {
  return max_tokens > kMostKernelTokens;
}

bool CudaGeneralWeight::fits(const ProductPlan& plan, DType y, int64_t tokens) const {
  if (const auto* slices = std::get_if<SliceConfig>(&plan)) {
    return y == dtype() && kernels_.slices && tokens <= kMostKernelTokens &&
           slice_fits(*kernels_.slices, *slices);
  }
  if (std::holds_alternative<RowConfig>(plan)) {
    return y == dtype() && kernels_.rows && tokens <= most_row_tokens(encoding_);
  }
  return true;
}

std::unique_ptr<WeightMatrix> load_encoding_cuda(EncodedWeight encoding, const LoadContext& ctx) {
  const auto e = std::make_shared<EncodedWeight>(with_own_memory(std::move(encoding)));
  const Parts parts(*e);
  DeviceEncoding made{.layout = parts.layout,
                      .dtype = e->dtype,
                      .rows = e->rows,
                      .columns = e->columns,
                      .nonzeros = e->nonzeros,
                      .units = parts.starts.back()};
  if (has_slice_kernels(made.layout, made.dtype)) {
    const std::vector<int> shares = scheduled_shares(
        attribute(cudaDevAttrMultiProcessorCount, ctx.device), parts.grid.slices());
    made.schedules = values_to_device(
        slice_schedules(parts.layout, parts.grid, parts.starts, shares, ctx.threads), ctx.device);
    if (made.layout.positions == PositionCode::i8) {
      made.border_positions = values_to_device(border_positions(parts, ctx.threads), ctx.device);
    }
  }
  if (has_row_kernels(made.layout, made.columns)) {
    add_row_pieces(made, parts.starts, parts.row_order, ctx.device);
  }
  made.starts = upload_part(e, kStarts, ctx);
  if (made.layout.sorted) {
    made.row_order = upload_part(e, kRowOrder, ctx);
  }
  made.positions = upload_part(e, kPositions, ctx);
  made.values = upload_part(e, kValues, ctx);
  return std::make_unique<CudaGeneralWeight>(std::move(made));
}

std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, const ExecContext& ctx) {
  std::optional<DeviceEncoding> made = encode_cuda(w, ctx);
  return made ? std::make_unique<CudaGeneralWeight>(std::move(*made)) : nullptr;
}

}  // namespace sparsellm::general_sparse
