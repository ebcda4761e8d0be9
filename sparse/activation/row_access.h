#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/tensor.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// A weight [rows, columns] of which single rows are read, in whatever format it is stored: those of
// the neurons of an MLP that are not zero. Rows of a gate and an up projection have as many columns
// as the MLP has inputs; of a down projection it is the transpose, with a row for each neuron too.
// The kernels on CUDA know the classes: so far DenseRows alone.
class RowAccess {
 public:
  virtual ~RowAccess() = default;

  virtual int64_t rows() const = 0;
  virtual int64_t columns() const = 0;
  virtual Device device() const = 0;
  virtual std::string_view name() const = 0;  // of the class, for messages

  // On the CPU, called by several threads at once. Numbers in lists are below rows().

  // sums[k] = row rows[k] times x [columns()], in the order of gemm()'s sums
  // (kernels/cpu/gemm_kernels.h).
  virtual void multiply(std::span<const int32_t> rows, const float* x, float* sums,
                        CpuIsa isa) const = 0;

  // Some rows, each times its factor. The list goes on with `next` more rows, for the next calls:
  // they may be prefetched.
  struct Terms {
    std::span<const int32_t> rows;
    const float* factors = nullptr;  // [rows.size()]
    int64_t next = 0;
  };
  // sums [columns.count]: these columns of the terms, for each column one chain of fused
  // multiply-adds from 0 on, in the order of the list.
  virtual void sum(const Terms& terms, Range columns, float* sums, CpuIsa isa) const = 0;
};

// Rows of a dense weight, or some of them: a view of memory that outlives it.
class DenseRows final : public RowAccess {
 public:
  // [rows, columns] of any floating dtype; rows may be strided.
  explicit DenseRows(const Tensor& weight);

  const Tensor& weight() const { return weight_; }
  int64_t rows() const override { return weight_.size(0); }
  int64_t columns() const override { return weight_.size(1); }
  Device device() const override { return weight_.device(); }
  std::string_view name() const override { return "dense rows"; }
  void multiply(std::span<const int32_t> rows, const float* x, float* sums,
                CpuIsa isa) const override;
  void sum(const Terms& terms, Range columns, float* sums, CpuIsa isa) const override;

 private:
  Tensor weight_;
};

}  // namespace sparsellm
