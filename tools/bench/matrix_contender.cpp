#include "tools/bench/matrix_contender.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/matrix_library_contenders.h"
#include "tools/bench/matrix_search.h"

namespace sparsellm {
namespace {

using general_sparse::Matrix;
using general_sparse::Order;

int64_t most_workspace_bytes(const Matrix& matrix, const MatrixInput& input) {
  int64_t bytes = 0;
  for (const int64_t n : input.columns) {
    for (const Order order : input.orders) {
      bytes = std::max(bytes, matrix.workspace_bytes(n, order));
    }
  }
  return bytes;
}

class GeneralSparseProduct : public BoundKernel {
 public:
  GeneralSparseProduct(const std::vector<std::unique_ptr<Matrix>>& matrices, const Tensor& b,
                       const Tensor& c, Order order, ExecContext& ctx)
      : matrices_(matrices), b_(b), c_(c), order_(order), ctx_(ctx) {}

  std::string algorithm(Launches) const override {
    return matrices_.front()->plan_text(b_.size(order_ == Order::rows ? 1 : 0), order_);
  }
  void enqueue(int64_t copy, Launches launches) override {
    ctx_.launches = launches;
    matrices_[static_cast<size_t>(copy)]->multiply(b_, c_, order_, ctx_);
  }

 private:
  const std::vector<std::unique_ptr<Matrix>>& matrices_;
  Tensor b_;
  Tensor c_;
  Order order_;
  ExecContext& ctx_;
};

class GeneralSparseContender : public MatrixContender {
 public:
  GeneralSparseContender(std::unique_ptr<Matrix> matrix, const MatrixInput& input)
      : workspace_(input.ctx.device, most_workspace_bytes(*matrix, input)),
        ctx_{.device = input.ctx.device,
             .workspace = workspace_,
             .threads = input.ctx.threads,
             .isa = input.ctx.isa,
             .cuda = input.ctx.cuda,
             .sums = input.ctx.sums} {
    matrices_.push_back(std::move(matrix));
    const int64_t count = cold_copies(bytes(), input.copy_bytes);
    while (std::ssize(matrices_) < count) {
      matrices_.push_back(matrices_.front()->copy());
    }
  }

  int64_t copies() const override { return std::ssize(matrices_); }
  std::vector<MatrixProduct> bind(const Tensor& b, const Tensor& c, Order order) override {
    std::vector<MatrixProduct> products;
    products.push_back(
        {.kernel = std::make_unique<GeneralSparseProduct>(matrices_, b, c, order, ctx_),
         .bytes = bytes()});
    return products;
  }

 private:
  int64_t bytes() const { return std::max(matrices_.front()->bytes(), int64_t{1}); }

  std::vector<std::unique_ptr<Matrix>> matrices_;
  Workspace workspace_;
  ExecContext ctx_;
};

}  // namespace

std::unique_ptr<MatrixContender> make_matrix_contender(std::unique_ptr<Matrix> matrix,
                                                       const MatrixInput& input) {
  return std::make_unique<GeneralSparseContender>(std::move(matrix), input);
}

std::unique_ptr<MatrixContender> make_general_sparse_contender(const MatrixInput& input) {
  return make_matrix_contender(
      general_sparse::load_matrix(input.matrix, input.ctx.device, input.threads, input.layout),
      input);
}

std::vector<MatrixContenderKind> matrix_contenders(Device device, const MatrixSearch& search) {
  using Role = MatrixContenderKind::Role;
  std::vector<MatrixContenderKind> kinds;
  kinds.push_back(
      {.name = "general_sparse", .role = Role::measured, .make = make_general_sparse_contender});
  if (device.is_cuda()) {
    for (MatrixContenderKind& kind : searched_contenders(search)) {
      kinds.push_back(std::move(kind));
    }
    kinds.push_back(
        {.name = "cusparse", .role = Role::sparse, .make = make_cusparse_matrix_contender});
    kinds.push_back({.name = "dense", .role = Role::dense, .make = make_dense_matrix_contender});
  }
  return kinds;
}

}  // namespace sparsellm
