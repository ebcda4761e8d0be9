#include "kernels/base/cuda_state.cuh"
#include "kernels/transpose.h"
#include "sparse/general_sparse/cuda/row_pieces.h"
#include "sparse/general_sparse/cuda/row_weight.h"
#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {
namespace {

// Tokens are loaded in vectors.
int64_t padded(int64_t tokens) { return ceil_div(tokens, 8) * 8; }

}  // namespace

void add_row_pieces(DeviceEncoding& encoding, std::span<const uint32_t> starts,
                    std::span<const uint16_t> row_order, const Device& device) {
  const ChunkGrid grid(encoding.layout, encoding.rows, encoding.columns);
  const RowPieces made = row_pieces(encoding.layout, grid, starts, row_order);
  encoding.row_counts = made.counts;
  encoding.row_pieces = to_device(std::as_bytes(std::span(made.pieces)), device);
  encoding.split_rows = to_device(std::as_bytes(std::span(made.split_rows)), device);
}

std::optional<RowWeight> row_weight(const DeviceEncoding& e) {
  if (!has_row_kernels(e.layout, e.columns)) {
    return std::nullopt;
  }
  const ChunkGrid grid(e.layout, e.rows, e.columns);
  RowWeight weight{.matrix = {.starts = static_cast<const uint32_t*>(e.starts.data()),
                              .row_order = static_cast<const uint16_t*>(e.row_order.data()),
                              .positions = static_cast<const uint8_t*>(e.positions.data()),
                              .values = static_cast<const uint8_t*>(e.values.data()),
                              .rows = static_cast<int>(e.rows),
                              .groups = static_cast<int>(grid.groups()),
                              .window_groups = static_cast<int>(grid.window_groups())},
                   .layout = e.layout,
                   .dtype = e.dtype,
                   .counts = e.row_counts,
                   .piece_list = static_cast<const RowPiece*>(e.row_pieces.data()),
                   .split_list = static_cast<const SplitRow*>(e.split_rows.data())};
  check_cuda(cudaDeviceGetAttribute(&weight.multiprocessors, cudaDevAttrMultiProcessorCount,
                                    e.values.device().index));
  return weight;
}

int64_t transposed_x_bytes(DType dtype, int64_t columns, int64_t tokens) {
  return tokens > 1 ? Workspace::tensor_bytes(dtype, {columns, padded(tokens)}) : 0;
}

DenseOperands with_transposed_x(const Tensor& x, const Tensor& y, Workspace::Scope& scratch,
                                ExecContext& ctx) {
  const int64_t tokens = x.size(0);
  DenseOperands operands{.b = x.raw(),
                         .b_stride = 1,
                         .c = y.raw(),
                         .c_row = 1,
                         .c_token = y.row_stride(),
                         .tokens = tokens};
  if (tokens > 1) {
    const Tensor wide = scratch.tensor(x.dtype(), {x.size(1), padded(tokens)});
    transpose(x, wide.columns(0, tokens), ctx);
    operands.b = wide.raw();
    operands.b_stride = padded(tokens);
  }
  return operands;
}

int64_t row_matmul_workspace_bytes(const RowWeight& weight, int64_t columns, int64_t tokens) {
  const int64_t partials = row_workspace_bytes(weight, tokens);
  return (partials > 0 ? Workspace::tensor_bytes(DType::u8, {partials}) : 0) +
         transposed_x_bytes(weight.dtype, columns, tokens);
}

void row_matmul(const RowWeight& weight, const RowMatmul& operands, const RowConfig& config,
                ExecContext& ctx) {
  auto scratch = ctx.workspace.scope();
  RowProductOperands product{.dense = with_transposed_x(operands.x, operands.y, scratch, ctx),
                             .bias = operands.bias,
                             .relu = operands.relu};
  if (const int64_t bytes = row_workspace_bytes(weight, operands.x.size(0)); bytes > 0) {
    product.workspace = scratch.tensor(DType::u8, {bytes}).raw();
  }
  row_product_cuda(weight, product, config, ctx);
}

}  // namespace sparsellm::general_sparse
