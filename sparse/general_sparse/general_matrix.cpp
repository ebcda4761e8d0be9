#include "sparse/general_sparse/general_matrix.h"

#include <optional>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/transpose.h"
#include "sparse/cpu/compressed_rows_weight.h"
#include "sparse/general_sparse/cuda/row_matrix_cuda.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/drop_zeros.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/general_sparse/matrix_operands.h"

namespace sparsellm::general_sparse {
namespace {

// By compressed rows, whose products take B and C by columns.
class CpuMatrix : public Matrix {
 public:
  explicit CpuMatrix(std::unique_ptr<WeightMatrix> weight) : weight_(std::move(weight)) {}

  int64_t rows() const override { return weight_->out(); }
  int64_t columns() const override { return weight_->in(); }
  DType dtype() const override { return weight_->dtype(); }
  int64_t nonzeros() const override { return weight_->nonzeros().value_or(0); }
  int64_t bytes() const override { return weight_->bytes(); }

  void multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const override {
    check_operands(*this, DType::f32, b, c, order, ctx);
    if (order == Order::columns) {
      weight_->matmul(b, c, {}, ctx);
      return;
    }
    auto scratch = ctx.workspace.scope();
    const int64_t n = columns_of(b, order);
    const Tensor b_columns = scratch.tensor(DType::f32, {n, columns()});
    const Tensor c_columns = scratch.tensor(DType::f32, {n, rows()});
    transpose(b, b_columns, ctx);
    weight_->matmul(b_columns, c_columns, {}, ctx);
    transpose(c_columns, c, ctx);
  }

  int64_t workspace_bytes(int64_t n, Order order) const override {
    const int64_t product = weight_->workspace_bytes(n, Sums::fastest);
    return order == Order::columns ? product
                                   : product + Workspace::tensor_bytes(DType::f32, {n, columns()}) +
                                         Workspace::tensor_bytes(DType::f32, {n, rows()});
  }

  void tune(const MatrixTuning&, TuneCache&, ExecContext&) override {}

  std::unique_ptr<Matrix> copy() const override {
    return std::make_unique<CpuMatrix>(weight_->copy());
  }
  std::string plan_text(int64_t, Order) const override { return {}; }

 private:
  std::unique_ptr<WeightMatrix> weight_;
};

CompressedRows copy_of_nonzeros(const CompressedRows& m, ThreadPool& threads) {
  if (std::optional<CompressedRows> rest = drop_zeros(m, threads)) {
    return std::move(*rest);
  }
  return copy_of(m);
}

Layout row_layout_from(std::string_view text, int64_t columns) {
  const Layout layout = layout_from(text);
  if (const std::optional<std::string> reason = why_no_row_kernels(layout, columns)) {
    fail("layout: there are no kernels of sparse matrices for {}", *reason);
  }
  return layout;
}

}  // namespace

void check_operands(const Matrix& a, DType dtype, const Tensor& b, const Tensor& c, Order order,
                    const ExecContext& ctx) {
  const bool by_rows = order == Order::rows;
  for (const auto& [tensor, name, size] :
       {std::tuple(&b, "B", a.columns()), std::tuple(&c, "C", a.rows())}) {
    require(tensor->rank() == 2 && tensor->dtype() == dtype && tensor->device() == ctx.device,
            "general_sparse: {} is {} {} on {}, not a matrix of {} on {}", name,
            name_of(tensor->dtype()), tensor->shape_string(), to_string(tensor->device()),
            name_of(dtype), to_string(ctx.device));
    require(tensor->size(by_rows ? 0 : 1) == size,
            "general_sparse: {} is {}, but the sparse matrix is {} x {}", name,
            tensor->shape_string(), a.rows(), a.columns());
  }
  require(columns_of(b, order) == columns_of(c, order), "general_sparse: B is {}, but C is {}",
          b.shape_string(), c.shape_string());
}

std::unique_ptr<Matrix> load_matrix(const CompressedRows& m, const Device& device,
                                    ThreadPool& threads, std::string_view layout) {
  std::optional<Layout> chosen;
  if (!layout.empty()) {
    chosen = row_layout_from(layout, m.columns());
  }
  if (device.is_cuda()) {
    return load_matrix_cuda(m, chosen, device, threads);
  }
  return std::make_unique<CpuMatrix>(
      std::make_unique<CompressedRowsWeight>(kName, copy_of_nonzeros(m, threads)));
}

}  // namespace sparsellm::general_sparse
