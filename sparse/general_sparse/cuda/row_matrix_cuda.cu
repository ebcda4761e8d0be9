#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/transpose.h"
#include "sparse/copy_buffer.h"
#include "sparse/general_sparse/cuda/row_matrix_cuda.h"
#include "sparse/general_sparse/cuda/row_pieces.h"
#include "sparse/general_sparse/cuda/row_product_cuda.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/general_sparse/matrix_operands.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {
namespace {

Buffer to_device(std::span<const std::byte> bytes, const Device& device) {
  Buffer buffer(device, std::ssize(bytes), "a sparse matrix");
  copy_bytes(device, buffer.data(), {}, bytes.data(), buffer.bytes());
  return buffer;
}

// What a RowWeight points to.
struct RowBuffers {
  Buffer starts;
  Buffer row_order;
  Buffer positions;
  Buffer values;
  Buffer pieces;
  Buffer split_rows;

  RowBuffers copied() const {
    return {.starts = copy_of(starts),
            .row_order = copy_of(row_order),
            .positions = copy_of(positions),
            .values = copy_of(values),
            .pieces = copy_of(pieces),
            .split_rows = copy_of(split_rows)};
  }
};

RowWeight pointing_to(RowWeight weight, const RowBuffers& buffers) {
  weight.matrix.starts = static_cast<const uint32_t*>(buffers.starts.data());
  weight.matrix.row_order = static_cast<const uint16_t*>(buffers.row_order.data());
  weight.matrix.positions = static_cast<const uint8_t*>(buffers.positions.data());
  weight.matrix.values = static_cast<const uint8_t*>(buffers.values.data());
  weight.piece_list = static_cast<const RowPiece*>(buffers.pieces.data());
  weight.split_list = static_cast<const SplitRow*>(buffers.split_rows.data());
  return weight;
}

class CudaMatrix : public Matrix {
 public:
  CudaMatrix(int64_t columns, int64_t nonzeros, const RowWeight& weight, RowBuffers buffers)
      : columns_(columns),
        nonzeros_(nonzeros),
        buffers_(std::move(buffers)),
        weight_(pointing_to(weight, buffers_)) {}

  int64_t rows() const override { return weight_.matrix.rows; }
  int64_t columns() const override { return columns_; }
  DType dtype() const override { return weight_.dtype; }
  int64_t nonzeros() const override { return nonzeros_; }
  int64_t bytes() const override {
    return buffers_.starts.bytes() + buffers_.row_order.bytes() + buffers_.positions.bytes() +
           buffers_.values.bytes() + buffers_.pieces.bytes() + buffers_.split_rows.bytes();
  }

  void multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const override {
    check_operands(*this, dtype(), b, c, order, ctx);
    const bool by_rows = order == Order::rows;
    const int64_t n = columns_of(b, order);
    if (n == 0 || rows() == 0) {
      return;
    }
    auto scratch = ctx.workspace.scope();
    RowProductOperands operands{.b = b.raw(),
                                .b_stride = by_rows ? b.row_stride() : 1,
                                .c = c.raw(),
                                .c_row = by_rows ? c.row_stride() : 1,
                                .c_token = by_rows ? 1 : c.row_stride(),
                                .tokens = n};
    if (!by_rows && n > 1) {
      const Tensor wide = scratch.tensor(dtype(), {columns(), padded(n)});
      transpose(b, wide.columns(0, n), ctx);
      operands.b = wide.raw();
      operands.b_stride = padded(n);
    }
    if (const int64_t bytes = row_workspace_bytes(weight_, n); bytes > 0) {
      operands.workspace = scratch.tensor(DType::u8, {bytes}).raw();
    }
    row_product_cuda(weight_, operands, ctx);
  }

  int64_t workspace_bytes(int64_t n, Order order) const override {
    const int64_t partials = row_workspace_bytes(weight_, n);
    return (partials > 0 ? Workspace::tensor_bytes(DType::u8, {partials}) : 0) +
           (order == Order::columns && n > 1
                ? Workspace::tensor_bytes(dtype(), {columns(), padded(n)})
                : 0);
  }

  std::unique_ptr<Matrix> copy() const override {
    return std::make_unique<CudaMatrix>(columns_, nonzeros_, weight_, buffers_.copied());
  }
  std::string plan_text(int64_t n, Order) const override { return row_plan_text(weight_, n); }

 private:
  // Tokens are loaded in vectors.
  static int64_t padded(int64_t n) { return (n + 7) / 8 * 8; }

  int64_t columns_;
  int64_t nonzeros_;
  RowBuffers buffers_;
  RowWeight weight_;
};

}  // namespace

std::unique_ptr<Matrix> load_matrix_cuda(const CompressedRows& m, const Device& device,
                                         ThreadPool& threads) {
  const Layout layout = choose_row_layout(m, row_statistics(m, threads));
  const EncodedWeight e = encode(m, layout, threads);
  const Parts parts(e);
  const RowPieces pieces = row_pieces(parts);
  std::vector<RowPiece> all_pieces = pieces.pieces;
  all_pieces.insert(all_pieces.end(), pieces.warp_rows.begin(), pieces.warp_rows.end());
  RowBuffers buffers{
      .starts = to_device(e.part(kStarts).bytes, device),
      .row_order = layout.sorted ? to_device(e.part(kRowOrder).bytes, device) : Buffer(),
      .positions = to_device(e.part(kPositions).bytes, device),
      .values = to_device(e.part(kValues).bytes, device),
      .pieces = to_device(std::as_bytes(std::span(all_pieces)), device),
      .split_rows = to_device(std::as_bytes(std::span(pieces.split_rows)), device)};
  int multiprocessors = 0;
  check_cuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index));
  const RowWeight weight{.matrix = {.rows = static_cast<int>(e.rows),
                                    .groups = static_cast<int>(parts.grid.groups()),
                                    .window_groups = static_cast<int>(parts.grid.window_groups())},
                         .layout = layout,
                         .dtype = e.dtype,
                         .mean_entries = pieces.mean_entries,
                         .longest = pieces.longest,
                         .block_pieces = static_cast<int>(pieces.pieces.size()),
                         .warp_rows = static_cast<int>(pieces.warp_rows.size()),
                         .partials = pieces.partials,
                         .split_rows = static_cast<int>(pieces.split_rows.size())};
  return std::make_unique<CudaMatrix>(e.columns, e.nonzeros, weight, std::move(buffers));
}

}  // namespace sparsellm::general_sparse
