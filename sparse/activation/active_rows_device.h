#pragma once

#include "sparse/activation/active_rows.h"

namespace sparsellm {

// The implementations of the ops of active_rows.h, which have checked their arguments.
void gated_rows_cpu(const Tensor& x, const GatedRows& rows, const Tensor& active, Tensor h,
                    ExecContext& ctx);
void plain_rows_cpu(const Tensor& x, const PlainRows& rows, const Tensor& active, Tensor h,
                    ExecContext& ctx);
void up_rows_cpu(const Tensor& x, const UpRows& rows, const Tensor& g, Tensor h, ExecContext& ctx);
void down_rows_cpu(const Tensor& h, const RowAccess& wt, const Tensor& bias, Tensor y,
                   ExecContext& ctx);
int64_t down_rows_workspace_bytes_cpu(int64_t neurons, int64_t out, int64_t tokens);

// On CUDA all rows are DenseRows, of the dtype of x or h.
void gated_rows_cuda(const Tensor& x, const GatedRows& rows, const Tensor& active, Tensor h,
                     ExecContext& ctx);
void plain_rows_cuda(const Tensor& x, const PlainRows& rows, const Tensor& active, Tensor h,
                     ExecContext& ctx);
void up_rows_cuda(const Tensor& x, const UpRows& rows, const Tensor& g, Tensor h, ExecContext& ctx);
void down_rows_cuda(const Tensor& h, const RowAccess& wt, const Tensor& bias,
                    const NeuronTally& tally, Tensor y, ExecContext& ctx);
int64_t down_rows_workspace_bytes_cuda(int64_t neurons, int64_t out, int64_t tokens);

}  // namespace sparsellm
