#include "tests/sparse/matrices/write_matrix_market.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <span>

namespace sparsellm::testing {

std::string matrix_market_text(const CompressedRows& m) {
  std::string text = fmt::format("%%MatrixMarket matrix coordinate real general\n{} {} {}\n",
                                 m.rows(), m.columns(), m.nonzeros());
  for (int64_t row = 0; row < m.rows(); ++row) {
    const std::span<const uint32_t> columns = m.columns_of(row);
    const std::span<const float> values = m.values_of<float>(row);
    for (size_t i = 0; i < columns.size(); ++i) {
      // Of the double, since the reader rounds twice.
      fmt::format_to(std::back_inserter(text), "{} {} {}\n", row + 1, columns[i] + 1,
                     double{values[i]});
    }
  }
  return text;
}

}  // namespace sparsellm::testing
