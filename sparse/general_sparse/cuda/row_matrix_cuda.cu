#include <string_view>
#include <utility>

#include "sparse/general_sparse/cuda/row_matrix_cuda.h"
#include "sparse/general_sparse/cuda/row_product_cuda.h"
#include "sparse/general_sparse/cuda/row_weight.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/general_sparse/matrix_operands.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {
namespace {

class CudaMatrix : public Matrix {
 public:
  explicit CudaMatrix(DeviceEncoding encoding)
      : encoding_(std::move(encoding)), weight_(row_weight(encoding_).value()) {}

  int64_t rows() const override { return encoding_.rows; }
  int64_t columns() const override { return encoding_.columns; }
  DType dtype() const override { return encoding_.dtype; }
  int64_t nonzeros() const override { return encoding_.nonzeros; }
  int64_t bytes() const override { return encoding_.bytes(); }

  void multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const override {
    check_operands(*this, dtype(), b, c, order, ctx);
    const int64_t n = columns_of(b, order);
    if (n == 0 || rows() == 0) {
      return;
    }
    const RowConfig config = row_rule(weight_, n);
    if (order == Order::columns) {
      row_matmul(weight_, {.x = b, .y = c}, config, ctx);
      return;
    }
    auto scratch = ctx.workspace.scope();
    const int64_t bytes = row_workspace_bytes(weight_, n);
    row_product_cuda(weight_,
                     {.dense = {.b = b.raw(),
                                .b_stride = b.row_stride(),
                                .c = c.raw(),
                                .c_row = c.row_stride(),
                                .c_token = 1,
                                .tokens = n},
                      .workspace = bytes == 0 ? nullptr : scratch.tensor(DType::u8, {bytes}).raw()},
                     config, ctx);
  }

  int64_t workspace_bytes(int64_t n, Order order) const override {
    if (order == Order::columns) {
      return row_matmul_workspace_bytes(weight_, columns(), n);
    }
    const int64_t bytes = row_workspace_bytes(weight_, n);
    return bytes == 0 ? 0 : Workspace::tensor_bytes(DType::u8, {bytes});
  }

  std::unique_ptr<Matrix> copy() const override {
    return std::make_unique<CudaMatrix>(encoding_.copied());
  }
  std::string plan_text(int64_t n, Order) const override {
    return fmt::format("rows {}", row_name(row_rule(weight_, n)));
  }

 private:
  DeviceEncoding encoding_;
  RowWeight weight_;  // of that
};

}  // namespace

std::unique_ptr<Matrix> load_matrix_cuda(const CompressedRows& m,
                                         const std::optional<Layout>& chosen, const Device& device,
                                         ThreadPool& threads) {
  const Layout layout = chosen ? *chosen : choose_row_layout(m, row_statistics(m, threads));
  const EncodedWeight e = encode(m, layout, threads);
  const Parts parts(e);
  const auto part = [&](std::string_view name) { return to_device(e.part(name).bytes, device); };
  DeviceEncoding made{.layout = layout,
                      .dtype = e.dtype,
                      .rows = e.rows,
                      .columns = e.columns,
                      .nonzeros = e.nonzeros,
                      .units = parts.starts.back(),
                      .starts = part(kStarts),
                      .row_order = layout.sorted ? part(kRowOrder) : Buffer(),
                      .positions = part(kPositions),
                      .values = part(kValues)};
  add_row_pieces(made, parts.starts, parts.row_order, device);
  return std::make_unique<CudaMatrix>(std::move(made));
}

}  // namespace sparsellm::general_sparse
