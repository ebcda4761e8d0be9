#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/crc32c.h"
#include "kernels/base/token_buckets.h"
#include "sparse/general_sparse/cuda/cuda_matrix.cuh"
#include "sparse/general_sparse/cuda/row_matrix_cuda.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/general_sparse/matrix_operands.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {
namespace {

// Of which elements are not zero: two sums of 32 bits, of the positions and of the starts.
uint64_t fingerprint_of(const EncodedWeight& e) {
  const auto sum = [&](std::string_view part) { return uint64_t{crc32c(e.part(part).bytes)}; };
  return sum(kPositions) << 32 | sum(kStarts);
}

std::optional<Tensor> partials(int64_t bytes, Workspace::Scope& scratch) {
  return bytes > 0 ? std::optional(scratch.tensor(DType::u8, {bytes})) : std::nullopt;
}
int64_t partials_bytes(int64_t bytes) {
  return bytes > 0 ? Workspace::tensor_bytes(DType::u8, {bytes}) : 0;
}

DenseOperands by_rows(const MatrixOperands& operands) {
  return {.b = operands.b.raw(),
          .b_stride = operands.b.row_stride(),
          .c = operands.c.raw(),
          .c_row = operands.c.row_stride(),
          .c_token = 1,
          .tokens = operands.b.size(1)};
}

// x and y of a linear layer as they are.
DenseOperands by_columns(const MatrixOperands& operands) {
  return {.b = operands.b.raw(),
          .b_stride = operands.b.row_stride(),
          .c = operands.c.raw(),
          .c_row = 1,
          .c_token = operands.c.row_stride(),
          .tokens = operands.b.size(0)};
}

}  // namespace

CudaMatrix::CudaMatrix(DeviceEncoding encoding, std::shared_ptr<const HostRows> host)
    : encoding_(std::move(encoding)),
      weight_(row_weight(encoding_).value()),
      host_(std::move(host)) {}

PlanMatrix CudaMatrix::plan_matrix() const {
  return {.positions = encoding_.positions.data(),
          .values = encoding_.values.data(),
          .dtype = encoding_.dtype,
          .rows = encoding_.rows,
          .shared_rows = encoding_.layout.shared_rows};
}

const CudaMatrix::Choice* CudaMatrix::choice(int64_t n, Order order) const {
  const auto found = choices_.find({token_bucket(n), order});
  return found == choices_.end() ? nullptr : &found->second;
}

void CudaMatrix::multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const {
  check_operands(*this, dtype(), b, c, order, ctx);
  const int64_t n = columns_of(b, order);
  if (n == 0 || rows() == 0) {
    return;
  }
  const MatrixOperands operands{.b = b, .c = c, .order = order};
  if (const Choice* const chosen = choice(n, order)) {
    std::visit([&](const auto& way) { run(way, operands, ctx); }, *chosen);
  } else {
    run(row_rule(weight_, n), operands, ctx);
  }
}

void CudaMatrix::run(const RowConfig& config, const MatrixOperands& operands,
                     ExecContext& ctx) const {
  if (operands.order == Order::columns) {
    row_matmul(weight_, {.x = operands.b, .y = operands.c}, config, ctx);
    return;
  }
  auto scratch = ctx.workspace.scope();
  const DenseOperands dense = by_rows(operands);
  const std::optional<Tensor> sums = partials(row_workspace_bytes(weight_, dense.tokens), scratch);
  row_product_cuda(weight_, {.dense = dense, .workspace = sums ? sums->raw() : nullptr}, config,
                   ctx);
}

void CudaMatrix::run(const PlanProduct& product, const MatrixOperands& operands,
                     ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  const bool as_it_is = product.plan().x_order == XOrder::by_token;
  const DenseOperands dense = operands.order == Order::rows ? by_rows(operands)
                              : as_it_is                    ? by_columns(operands)
                                         : with_transposed_x(operands.b, operands.c, scratch, ctx);
  const std::optional<Tensor> sums = partials(product.workspace_bytes(dense.tokens), scratch);
  product.multiply(dense, sums ? sums->raw() : nullptr, ctx);
}

int64_t CudaMatrix::run_workspace_bytes(int64_t n, Order order) const {
  return order == Order::columns ? row_matmul_workspace_bytes(weight_, columns(), n)
                                 : partials_bytes(row_workspace_bytes(weight_, n));
}

int64_t CudaMatrix::run_workspace_bytes(const PlanProduct& product, int64_t n, Order order) const {
  const bool transposes = order == Order::columns && product.plan().x_order == XOrder::transposed;
  return partials_bytes(product.workspace_bytes(n)) +
         (transposes ? transposed_x_bytes(dtype(), columns(), n) : 0);
}

int64_t CudaMatrix::workspace_bytes(int64_t n, Order order) const {
  const Choice* const chosen = choice(n, order);
  const auto* const generated = chosen == nullptr ? nullptr : std::get_if<PlanProduct>(chosen);
  return generated == nullptr ? run_workspace_bytes(n, order)
                              : run_workspace_bytes(*generated, n, order);
}

std::unique_ptr<Matrix> CudaMatrix::copy() const {
  auto made = std::make_unique<CudaMatrix>(encoding_.copied(), host_);
  for (const auto& [key, chosen] : choices_) {
    if (const auto* const generated = std::get_if<PlanProduct>(&chosen)) {
      made->choices_.emplace(key, generated->for_copy(made->plan_matrix()));
    } else {
      made->choices_.emplace(key, std::get<RowConfig>(chosen));
    }
  }
  return made;
}

std::string CudaMatrix::plan_text(int64_t n, Order order) const {
  const Choice* const chosen = choice(n, order);
  if (chosen == nullptr) {
    return matrix_plan_text(row_rule(weight_, n));
  }
  if (const auto* const generated = std::get_if<PlanProduct>(chosen)) {
    return matrix_plan_text(generated->plan());
  }
  return matrix_plan_text(std::get<RowConfig>(*chosen));
}

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
  HostRows host{.starts = {parts.starts.begin(), parts.starts.end()},
                .row_order = {parts.row_order.begin(), parts.row_order.end()},
                .fingerprint = fingerprint_of(e)};
  return std::make_unique<CudaMatrix>(std::move(made),
                                      std::make_shared<const HostRows>(std::move(host)));
}

}  // namespace sparsellm::general_sparse
