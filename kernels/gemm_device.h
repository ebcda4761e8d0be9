#pragma once

#include "kernels/gemm.h"

namespace sparsellm {

// The implementations behind gemm(), which has checked their arguments.
void gemm_cpu(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y,
              ExecContext& ctx);
void gemm_cuda(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y,
               ExecContext& ctx);

}  // namespace sparsellm
