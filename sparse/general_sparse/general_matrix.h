#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// How the elements of the dense matrices of C = A * B lie.
enum class Order : uint8_t {
  rows,     // tensors [K, N] and [M, N]
  columns,  // tensors [N, K] and [N, M], as a linear layer has x and y
};

// A sparse matrix A [M, K] of f16, bf16 or f32 on a device, for products of any field: what
// WeightMatrix is to the linear layers of a model. Immutable.
class Matrix {
 public:
  virtual ~Matrix() = default;

  virtual int64_t rows() const = 0;     // M
  virtual int64_t columns() const = 0;  // K
  virtual DType dtype() const = 0;
  virtual int64_t nonzeros() const = 0;
  virtual int64_t bytes() const = 0;  // that a product reads of A

  // C = A * B, both of the dtype of A on its device (on the CPU f32, whatever A is); sums are in
  // f32. Rows of the tensors may be strided, elements of a row are side by side. c must not overlap
  // b. The same bits in every run. Throws Error for operands that do not fit.
  virtual void multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const = 0;
  // What multiply() of this many columns of B takes from the workspace.
  virtual int64_t workspace_bytes(int64_t n, Order order) const = 0;

  // For measurements and their reports: the same matrix in memory of its own, and how multiply()
  // computes such a product.
  virtual std::unique_ptr<Matrix> copy() const = 0;
  virtual std::string plan_text(int64_t n, Order order) const = 0;
};

// On the CPU, or a CUDA device, which has the matrix on return. m is valid. `layout` is the text of
// the layout (format/layout.h) that a CUDA device has it in, and may be hostile; empty: that of
// choose_row_layout(). The CPU multiplies by compressed rows, whatever it says. Throws Error for a
// matrix that the format does not hold, for a layout that CUDA devices do not multiply such a
// matrix by, and for CUDA in a CPU-only build.
std::unique_ptr<Matrix> load_matrix(const CompressedRows& m, const Device& device,
                                    ThreadPool& threads, std::string_view layout = {});

}  // namespace sparsellm::general_sparse
