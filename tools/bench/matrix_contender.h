#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/matrices/compressed_rows.h"
#include "tools/bench/contender.h"

namespace sparsellm {

// What a contender for products C [M, N] = A [M, K] * B [K, N] of a sparse matrix A is made from.
struct MatrixInput {
  const CompressedRows& matrix;  // A, valid; need not outlive the contender
  // Of A's blocks if it has no nonzeros outside of dense blocks of block_size x block_size at
  // multiples of it; else 0.
  int64_t block_size = 0;
  int64_t copy_bytes = 0;                          // that the copies of A have together, at least
  std::vector<int64_t> columns = {};               // N that bind() is called with
  std::vector<general_sparse::Order> orders = {};  // likewise
  ThreadPool& threads;                             // of the host
  ExecContext& ctx;                                // outlives the contender
  std::string layout = {};                         // of general_sparse, as its text; empty: by rule
};

// A product with its operands, and the bytes that it reads of A.
struct MatrixProduct {
  std::unique_ptr<BoundKernel> kernel = {};
  int64_t bytes = 0;
};

// A way to multiply by a sparse matrix: the engine's or a library's, with as many copies of A, all
// equal, as it takes to find none of them in the cache.
class MatrixContender {
 public:
  virtual ~MatrixContender() = default;
  virtual int64_t copies() const = 0;
  // The algorithms that can be tried, at least one; B and C are tensors in that order on the
  // context's device. They refer to this object. Throws Error.
  virtual std::vector<MatrixProduct> bind(const Tensor& b, const Tensor& c,
                                          general_sparse::Order order) = 0;
};

// A contender of a benchmark.
struct MatrixContenderKind {
  enum class Role : uint8_t {
    measured,  // compared with what follows
    sparse,    // a library's products of sparse matrices
    dense,     // a library's of the matrix with all of its zeros
  };

  std::string name = {};
  Role role = Role::measured;
  // Throws Error. nullptr: it does not take such a matrix, and has no results.
  std::function<std::unique_ptr<MatrixContender>(const MatrixInput&)> make = {};
};

struct MatrixSearch;  // tools/bench/matrix_search.h

// "general_sparse" on either device; on CUDA those of a search, "cusparse" and "dense" as well.
std::vector<MatrixContenderKind> matrix_contenders(Device device, const MatrixSearch& search);

// general_sparse::load_matrix().
std::unique_ptr<MatrixContender> make_general_sparse_contender(const MatrixInput& input);
// A matrix that was loaded from that input, and copies of it.
std::unique_ptr<MatrixContender> make_matrix_contender(
    std::unique_ptr<general_sparse::Matrix> matrix, const MatrixInput& input);

}  // namespace sparsellm
