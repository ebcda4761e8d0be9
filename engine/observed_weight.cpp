#include "engine/observed_weight.h"

#include <cstddef>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int64_t kMinColumns = 64;  // of a thread: whole cache lines of x and of the sums

}  // namespace

ObservedWeight::ObservedWeight(std::unique_ptr<WeightMatrix> weight, std::vector<double>& squares)
    : weight_(std::move(weight)), squares_(&squares) {
  require(std::ssize(squares) == in(), "{} sums of the inputs of a weight with {} columns",
          squares.size(), in());
}

void ObservedWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                            ExecContext& ctx) const {
  weight_->matmul(x, y, epilogue, ctx);  // checks x
  ctx.threads.parallel_for(in(), kMinColumns, [&](int64_t begin, int64_t end) {
    for (int64_t token = 0; token < x.size(0); ++token) {
      const float* const row = x.row<float>(token);
      double* const squares = squares_->data();
      for (int64_t column = begin; column < end; ++column) {
        const double value = row[column];
        squares[column] += value * value;
      }
    }
  });
}

void ObservedWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  weight_->expand(rows, dense, ctx);
}

int64_t ObservedWeight::workspace_bytes(int64_t tokens, Sums sums) const {
  return weight_->workspace_bytes(tokens, sums);
}

}  // namespace sparsellm
