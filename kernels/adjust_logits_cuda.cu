#include "kernels/adjust_logits_device.h"
#include "kernels/base/launch.cuh"

namespace sparsellm {
namespace {

// Of a row of logits, or of a list of adjustments.
constexpr int kThreads = 512;

struct Logits {
  float* values;
  int vocabulary;
  int64_t first_row;

  __device__ float* row(int row) const { return values + (row - first_row) * vocabulary; }
};

// Adjusts one logit, and leaves what it was in `entry`.
__device__ void adjust_entry(LogitAdjustment& entry, int count, const Penalties& penalties,
                             float* logits) {
  const float before = logits[entry.token];
  if (isfinite(before)) {
    const float adjusted = adjusted_logit(before, count, entry.bias, penalties);
    logits[entry.token] = adjusted == -INFINITY ? __uint_as_float(kForbiddenLogit) : adjusted;
  }
  entry.bias = before;
}

// One block for each row, whose threads share its list: no token is in it twice, so no two threads
// have the same logit. The thread that finds the entry of the latest token counts it there; if no
// thread does, the first one fills the last entry.
__global__ void __launch_bounds__(kThreads)
    adjust_logits_kernel(const AdjustedRow* rows, const int32_t* tokens,
                         LogitAdjustment* adjustments, Logits logits) {
  const AdjustedRow row = rows[blockIdx.x];
  LogitAdjustment* const entries = adjustments + row.first;
  float* const values = logits.row(row.row);
  const int32_t latest = tokens[row.last];
  bool found = false;
  for (int i = threadIdx.x; i < row.count - 1; i += kThreads) {
    LogitAdjustment entry = entries[i];
    if (entry.token < 0) {
      continue;
    }
    int count = entry.count;
    if (entry.token == latest) {
      found = true;
      count = max(count, 0) + row.generated;
    }
    adjust_entry(entry, count, row.penalties, values);
    entries[i].bias = entry.bias;
  }
  if (__syncthreads_or(found) == 0 && threadIdx.x == 0) {
    LogitAdjustment entry{.token = latest, .count = row.generated, .bias = 0.0f};
    adjust_entry(entry, entry.count, row.penalties, values);
    entries[row.count - 1] = entry;
  }
}

// The same threads, each with its entries.
__global__ void __launch_bounds__(kThreads)
    restore_logits_kernel(const AdjustedRow* rows, const LogitAdjustment* adjustments,
                          Logits logits) {
  const AdjustedRow row = rows[blockIdx.x];
  float* const values = logits.row(row.row);
  for (int i = threadIdx.x; i < row.count; i += kThreads) {
    const LogitAdjustment entry = adjustments[row.first + i];
    if (entry.token >= 0) {
      values[entry.token] = entry.bias;
    }
  }
}

LaunchShape shape_for(const Tensor& rows) {
  return {.blocks = static_cast<unsigned>(rows.size(0)), .threads = kThreads};
}

Logits logits_from(const Tensor& logits, int64_t first_row) {
  return {.values = static_cast<float*>(logits.raw()),
          .vocabulary = static_cast<int>(logits.size(1)),
          .first_row = first_row};
}

}  // namespace

void adjust_logits_cuda(const Tensor& rows, const Tensor& tokens, Tensor adjustments,
                        int64_t first_row, Tensor logits, ExecContext& ctx) {
  launch(ctx, adjust_logits_kernel, shape_for(rows), static_cast<const AdjustedRow*>(rows.raw()),
         static_cast<const int32_t*>(tokens.raw()),
         static_cast<LogitAdjustment*>(adjustments.raw()), logits_from(logits, first_row));
}

void restore_logits_cuda(const Tensor& rows, const Tensor& adjustments, int64_t first_row,
                         Tensor logits, ExecContext& ctx) {
  launch(ctx, restore_logits_kernel, shape_for(rows), static_cast<const AdjustedRow*>(rows.raw()),
         static_cast<const LogitAdjustment*>(adjustments.raw()), logits_from(logits, first_row));
}

}  // namespace sparsellm
