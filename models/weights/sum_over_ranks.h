#pragma once

#include "kernels/base/comm.h"
#include "kernels/base/exec.h"
#include "kernels/base/step_trace.h"

namespace sparsellm {

// y [tokens, hidden] of each rank becomes the sum of all; of a single rank it stays as it is.
inline void sum_over_ranks(Tensor y, ExecContext& ctx) {
  if (ctx.comm != nullptr) {
    const TraceScope traced(ctx, "communication");
    ctx.comm->all_reduce_sum(y, ctx);
  }
}

// The same where a Communicator::Deferral has left its end open.
inline void finish_sum_over_ranks(Tensor y, ExecContext& ctx) {
  if (ctx.comm != nullptr && ctx.comm->defers_sums()) {
    const TraceScope traced(ctx, "communication");
    ctx.comm->finish_sum(y, ctx);
  }
}

}  // namespace sparsellm
