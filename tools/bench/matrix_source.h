#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/matrices/compressed_rows.h"
#include "sparse/matrices/random_matrix.h"

namespace sparsellm {

// Where a sparse matrix to measure with comes from: a .mtx file, or else a generator.
struct MatrixSource {
  std::string name = {};
  std::filesystem::path file = {};  // empty: a random matrix
  RandomMatrix random = {};

  // "banded"; "file" of a .mtx file.
  std::string class_name() const;
  // Of the dense square blocks that are all that it has; 0: of none.
  int64_t block_size() const;
  // Of f32, valid. Throws Error.
  CompressedRows make(ThreadPool& threads) const;
};

// Of a file's name, without the folder and the extension.
MatrixSource market_source(const std::filesystem::path& file);

}  // namespace sparsellm
