#include "tests/sparse/matrices/compressed_product.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {

Expected compressed_product(const Tensor& x, const CompressedRows& m, ThreadPool& threads) {
  const auto tokens = static_cast<size_t>(x.size(0));
  const auto rows = static_cast<size_t>(m.rows());
  const auto in = static_cast<size_t>(m.columns());
  const std::vector<double> xs = values_of(x);
  Expected result{.values = std::vector<double>(tokens * rows),
                  .magnitudes = std::vector<double>(tokens * rows)};
  visit_float(m.dtype(), [&]<class T>(T) {
    threads.parallel_for(m.rows(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const std::span<const uint32_t> columns = m.columns_of(row);
        const std::span<const T> values = m.values_of<T>(row);
        for (size_t token = 0; token < tokens; ++token) {
          double& sum = result.values[token * rows + static_cast<size_t>(row)];
          double& magnitude = result.magnitudes[token * rows + static_cast<size_t>(row)];
          for (size_t i = 0; i < columns.size(); ++i) {
            const double term = double{to_float(values[i])} * xs[token * in + columns[i]];
            sum += term;
            magnitude += std::abs(term) + double{std::numeric_limits<float>::min()};
          }
        }
      }
    });
  });
  return result;
}

}  // namespace sparsellm::testing
