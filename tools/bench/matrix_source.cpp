#include "tools/bench/matrix_source.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/matrices/matrix_market.h"

namespace sparsellm {

std::string MatrixSource::class_name() const {
  return file.empty() ? std::string(name_of(random.matrix_class)) : "file";
}

int64_t MatrixSource::block_size() const {
  const bool has_blocks = file.empty() && random.matrix_class == MatrixClass::blocks &&
                          random.block_rows == random.block_columns && random.block_rows > 1 &&
                          random.rows % random.block_rows == 0 &&
                          random.columns % random.block_columns == 0;
  return has_blocks ? random.block_rows : 0;
}

CompressedRows MatrixSource::make(ThreadPool& threads) const {
  return file.empty() ? random_matrix(random, threads) : read_matrix_market(file);
}

MatrixSource market_source(const std::filesystem::path& file) {
  return {.name = file.stem().string(), .file = file, .random = {}};
}

void check_random_matrix(const RandomMatrix& what) {
  require(what.nonzeros <= what.rows * what.columns, "{} nonzeros in a matrix {} x {}",
          what.nonzeros, what.rows, what.columns);
  require(what.matrix_class != MatrixClass::stencil || what.rows == what.columns,
          "a stencil is a square matrix, not {} x {}", what.rows, what.columns);
  require(what.matrix_class != MatrixClass::blocks ||
              (what.block_rows <= what.rows && what.block_columns <= what.columns),
          "blocks of {} x {} in a matrix {} x {}", what.block_rows, what.block_columns, what.rows,
          what.columns);
}

CompressedRows with_dtype(CompressedRows m, DType dtype, ThreadPool& threads) {
  constexpr int64_t kValuesAtATime = 1 << 14;
  if (m.dtype() == dtype) {
    return m;
  }
  CompressedRows result(dtype, m.rows(), m.columns(), m.nonzeros());
  std::ranges::copy(m.starts(), result.starts().begin());
  std::ranges::copy(m.column_indices(), result.column_indices().begin());
  visit_float(m.dtype(), [&]<class From>(From) {
    visit_float(dtype, [&]<class To>(To) {
      const std::span<const From> from = std::as_const(m).values<From>();
      const std::span<To> to = result.values<To>();
      threads.parallel_for(m.nonzeros(), kValuesAtATime, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          to[i] = from_float<To>(to_float(from[i]));
        }
      });
    });
  });
  return result;
}

}  // namespace sparsellm
