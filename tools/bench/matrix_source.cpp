#include "tools/bench/matrix_source.h"

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

}  // namespace sparsellm
