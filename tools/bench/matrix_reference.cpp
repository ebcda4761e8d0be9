#include "tools/bench/matrix_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "kernels/random_order.h"
#include "tools/bench/verify_product_device.h"

namespace sparsellm {
namespace {

using general_sparse::Order;

constexpr double kInfiniteError = std::numeric_limits<double>::infinity();

int64_t longest_row_of(const CompressedRows& a) {
  int64_t longest = 0;
  int64_t length = -1;
  for (int64_t row = 0; row < a.rows(); ++row) {
    const int64_t of_row = std::ssize(a.columns_of(row));
    if (of_row > length) {
      length = of_row;
      longest = row;
    }
  }
  return longest;
}

std::vector<int64_t> rows_to_compare(const CompressedRows& a, uint64_t seed) {
  std::vector<int64_t> rows;
  if (a.rows() <= MatrixReference::kAllRows) {
    rows.resize(static_cast<size_t>(a.rows()));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    return rows;
  }
  rows = {0, a.rows() - 1, longest_row_of(a)};
  const RandomOrder order = random_order(a.rows());
  const uint64_t key = random_key(seed, "verified rows");
  for (uint64_t i = 0; i < static_cast<uint64_t>(MatrixReference::kSampledRows); ++i) {
    rows.push_back(static_cast<int64_t>(place_in(order, key, i)));
  }
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// The worst of what the threads find.
class WorstError {
 public:
  void take(double error) {
    const std::scoped_lock lock(mutex_);
    worst_ = std::max(worst_, error);
  }
  double worst() const { return worst_; }

 private:
  std::mutex mutex_;
  double worst_ = 0.0;
};

// Whether every element is a finite number.
template <class T>
bool all_finite(const T* elements, int64_t begin, int64_t end) {
  bool finite = true;
  for (int64_t i = begin; i < end; ++i) {
    // A comparison with NaN is false.
    finite &= std::abs(to_float(elements[i])) <= std::numeric_limits<float>::max();
  }
  return finite;
}

}  // namespace

MatrixReference::MatrixReference(const CompressedRows& a, const Tensor& b, uint64_t seed,
                                 ThreadPool& threads)
    : all_rows_(a.rows()), columns_(b.size(1)), rows_(rows_to_compare(a, seed)) {
  require(b.rank() == 2 && b.contiguous() && b.size(0) == a.columns() && !b.device().is_cuda(),
          "the reference of a product of a matrix {} x {} and {}", a.rows(), a.columns(),
          b.shape_string());
  const auto columns = static_cast<size_t>(columns_);
  values_.resize(rows_.size() * columns);
  magnitudes_.resize(values_.size());
  visit_float(a.dtype(), [&]<class A>(A) {
    visit_float(b.dtype(), [&]<class B>(B) {
      // One at a time: rows differ in length by orders of magnitude.
      threads.parallel_for(compared_rows(), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          const auto row_columns = a.columns_of(rows_[i]);
          const auto row_values = a.values_of<A>(rows_[i]);
          double* const sums = values_.data() + i * columns;
          double* const magnitudes = magnitudes_.data() + i * columns;
          for (size_t k = 0; k < row_columns.size(); ++k) {
            const auto factor = static_cast<double>(to_float(row_values[k]));
            const B* const b_row = b.row<B>(row_columns[k]);
            for (size_t j = 0; j < columns; ++j) {
              const double product = factor * static_cast<double>(to_float(b_row[j]));
              sums[j] += product;
              magnitudes[j] += std::abs(product);
            }
          }
        }
      });
    });
  });
}

double MatrixReference::worst_error(const Tensor& c, Order order, ExecContext& ctx,
                                    ThreadPool& threads) {
  const bool by_rows = order == Order::rows;
  require(c.rank() == 2 && c.contiguous() && c.size(by_rows ? 0 : 1) == all_rows_ &&
              c.size(by_rows ? 1 : 0) <= columns_,
          "the reference of a product is {} x {}, C is {}", all_rows_, columns_, c.shape_string());
  const int64_t n = c.size(by_rows ? 1 : 0);
  const void* elements = c.raw();
  if (c.device().is_cuda()) {
    if (host_.bytes() < c.bytes()) {
      host_ = {};
      host_ = Buffer({}, c.bytes(), "C on the host");
    }
    ctx.cuda->copy(host_.data(), c.raw(), c.bytes());
    elements = host_.data();
  }
  WorstError worst;
  visit_float(c.dtype(), [&]<class T>(T) {
    constexpr int64_t kFiniteGrain = 1 << 16;
    const auto* const results = static_cast<const T*>(elements);
    threads.parallel_for(c.element_count(), kFiniteGrain, [&](int64_t begin, int64_t end) {
      if (!all_finite(results, begin, end)) {
        worst.take(kInfiniteError);
      }
    });
    constexpr int64_t kRowGrain = 64;
    const Rounding rounding = rounding_of(c.dtype());
    threads.parallel_for(compared_rows(), kRowGrain, [&](int64_t begin, int64_t end) {
      double most = 0.0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = rows_[static_cast<size_t>(i)];
        for (int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<size_t>(i * columns_ + j);
          const double in_sum = static_cast<double>(kSumTolerance) * magnitudes_[at];
          const double tolerance =
              in_sum + static_cast<double>(rounding.relative) * (std::abs(values_[at]) + in_sum) +
              static_cast<double>(rounding.absolute);
          const auto result =
              static_cast<double>(to_float(results[by_rows ? row * n + j : j * all_rows_ + row]));
          const double error = std::abs(result - values_[at]) / tolerance;
          // A comparison with NaN is false.
          most =
              error <= std::numeric_limits<double>::max() ? std::max(most, error) : kInfiniteError;
        }
      }
      worst.take(most);
    });
  });
  return worst.worst();
}

}  // namespace sparsellm
