#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/matrices/compressed_rows.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// A sparse weight of f16, bf16 or f32 on the CPU, by its nonzeros: for f32, and for so few of them
// that panels (sparse/cpu/panels/panel_weight.h), which are decoded whole, would take longer. The
// sums are those of panels without the terms of zeros (sparse/cpu/row_products/row_kernels.h). For
// finite x both have the same bits, with one exception: a sum whose terms all underflow to -0 is -0
// here and 0 there. The bits of a row of y do not depend on the other rows, the
// instruction set (ExecContext::isa) and the threads.
//
// Threads share the nonzeros, and not the rows, some of which may have most of them: of such a row
// each takes some tokens. A sum is made by one thread.
class CompressedRowsWeight : public WeightMatrix {
 public:
  // `format`: the name of what it was encoded in. m is valid.
  CompressedRowsWeight(std::string_view format, CompressedRows m);

  std::string_view format() const override { return format_; }
  int64_t out() const override { return matrix_.rows(); }
  int64_t in() const override { return matrix_.columns(); }
  DType dtype() const override { return matrix_.dtype(); }
  int64_t bytes() const override;
  std::optional<int64_t> nonzeros() const override { return matrix_.nonzeros(); }

  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }
  std::unique_ptr<WeightMatrix> copy() const override;
  std::string plan_text(DType y, int64_t tokens, const ExecContext& ctx) const override;

 private:
  // All tokens of some consecutive rows, or a row of which tokens are shared out.
  using Rows = Range;
  struct Tokens;  // as they are multiplied

  void share_out_rows();
  void sort_rows(const Rows& rows);
  void multiply_rows(const Rows& rows, const Tokens& tokens, const Epilogue& epilogue,
                     const Tensor& y, CpuIsa isa) const;

  std::string format_;
  CompressedRows matrix_;
  std::vector<Rows> shares_;     // of about equally many nonzeros
  std::vector<Rows> long_rows_;  // of one row each
  // [rows]: for the blocks of each of those, of which all but the last have kBlockRows rows, the
  // order of a RowBlock.
  std::vector<uint8_t> order_;
};

// Of such a weight. Throws Error for sizes that overflow.
int64_t compressed_rows_weight_bytes(int64_t rows, int64_t nonzeros, DType dtype);

// The bytes of the workspace that matmul() takes, by the number of columns of the weight.
int64_t compressed_rows_workspace_bytes(int64_t columns, int64_t tokens);

}  // namespace sparsellm
