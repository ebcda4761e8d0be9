#pragma once

#include "kernels/gemm.h"

namespace sparsellm {

struct GemmSizes {
  int64_t out;
  int64_t in;
};

inline GemmSizes gemm_sizes(const Tensor& w, WeightOrder order) {
  return order == WeightOrder::out_in ? GemmSizes{.out = w.size(0), .in = w.size(1)}
                                      : GemmSizes{.out = w.size(1), .in = w.size(0)};
}

// The implementations of gemm(), gemm_transposed() and tune_gemm(), which have checked their
// arguments; w as stored.
void gemm_cpu(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y,
              ExecContext& ctx);
void gemm_transposed_cpu(const Tensor& x, const Tensor& wt, const Epilogue& epilogue, Tensor y,
                         ExecContext& ctx);
int64_t gemm_workspace_bytes_cpu(int64_t in, int64_t tokens);
void gemm_cuda(const Tensor& x, const Tensor& w, WeightOrder order, const Epilogue& epilogue,
               Tensor y, ExecContext& ctx);
int64_t tune_gemm_cuda(const GemmTuning& what, TuneCache& cache, ExecContext& ctx);

}  // namespace sparsellm
