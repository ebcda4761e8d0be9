#include "kernels/base/launch.cuh"
#include "kernels/device/logit_ranks.cuh"
#include "kernels/log_probs_device.h"

namespace sparsellm {
namespace {

using namespace logit_ranks;

constexpr float kUnits = 0x1p40f;  // of a weight of 1; the sum of 2^22 of them fits 64 bits
constexpr unsigned kCandidates = kThreads;

// 41 KiB.
struct Shared {
  RunShared run;
  uint64_t candidates[kCandidates];
  unsigned count;
};

// exp(logit - largest) in whole units of 2^-40, whose sum does not depend on which thread has which
// logits.
__device__ uint64_t weight_of(float logit, float largest) {
  return __float2ull_rn(expf(logit - largest) * kUnits);
}

// A rank that at least `count` logits reach, of many logits mostly not many more: the count-th of
// the best ranks of the threads. The lowest rank, if fewer threads have one.
__device__ uint64_t reached_by(const RankedLogits& row, uint64_t best_of_thread, int count,
                               RunShared& shared) {
  const auto for_best_from = [&](uint64_t from, auto visit) {
    if (best_of_thread >= from) {
      visit(best_of_thread);
    }
  };
  return lowest_of_run(
      row.lowest_rank(), row.rank_bits(), for_best_from, [](uint64_t) { return uint64_t{1}; },
      [count](uint64_t) { return static_cast<uint64_t>(count); }, shared);
}

// That exactly `count` logits reach, or the lowest.
__device__ uint64_t reached_by_exactly(const RankedLogits& row, uint64_t lowest, int count,
                                       RunShared& shared) {
  const auto for_each_from = [&](uint64_t from, auto visit) {
    row.for_each_rank({0, row.vocabulary}, threadIdx.x, kThreads, from, visit);
  };
  return lowest_of_run(
      lowest, row.rank_bits(), for_each_from, [](uint64_t) { return uint64_t{1}; },
      [count](uint64_t) { return static_cast<uint64_t>(count); }, shared);
}

// Puts those that reach `lowest` into shared.candidates, in any order, as far as there is room, and
// their number into shared.count, which is 0 before. Returns the sum of the weights of all logits
// of the thread.
__device__ uint64_t collect(const RankedLogits& row, uint64_t lowest, float largest,
                            Shared& shared) {
  const float floor = row.logit_of(lowest);
  uint64_t sum = 0;
  row.for_each({0, row.vocabulary}, threadIdx.x, kThreads, [&](int id, float logit) {
    sum += weight_of(logit, largest);
    if (logit >= floor) {
      const uint64_t rank = row.rank_of(logit, id);
      if (rank >= lowest) {
        const unsigned place = atomicAdd(&shared.count, 1u);
        if (place < kCandidates) {
          shared.candidates[place] = rank;
        }
      }
    }
  });
  return sum;
}

// One block per row, which reads it twice: for the best rank of each thread and whether all is
// finite, then for the sum of the weights and the candidates for the `top` largest, of which every
// thread has at most one here and finds its place among them. Only where more logits than there is
// room for reach what `top` threads have (long runs of equal ones, or of large ones in few threads)
// the exact bound is searched for, which reads the row two to four times more. 1,024 threads with
// eight logits each under way are what one multiprocessor needs to read from the L2 at full speed.
__global__ void __launch_bounds__(kThreads)
    log_probs_kernel(const LogProbRow* rows, const int32_t* tokens, const float* logits,
                     int vocabulary, int64_t first_row, LogProbs* results) {
  __shared__ Shared shared;
  const LogProbRow wanted = rows[blockIdx.x];
  LogProbs& result = results[blockIdx.x];
  const RankedLogits row =
      RankedLogits::of_row(logits + (wanted.row - first_row) * vocabulary, vocabulary,
                           {.ids = nullptr, .count = 0, .filter = nullptr});
  const int token = wanted.token < 0 ? tokens[-1 - wanted.token] : wanted.token;
  bool infinite = false;
  const uint64_t best_of_thread = best_rank(row, infinite);
  if (__syncthreads_or(infinite) != 0) {
    if (threadIdx.x == 0) {
      result.finite = 0;
      result.token = token;
    }
    return;
  }
  const float largest = row.logit_of(largest_of_block(best_of_thread, shared.run.of_warps));
  __syncthreads();  // before of_warps is written again

  const int top = min(wanted.top, kMaxDeviceLogProbs);
  uint64_t lowest = ~uint64_t{0};  // which no logit reaches
  if (top > 0) {
    lowest = reached_by(row, best_of_thread, top, shared.run);
  }
  if (threadIdx.x == 0) {
    shared.count = 0;
  }
  __syncthreads();
  const uint64_t sum = collect(row, lowest, largest, shared);
  __syncthreads();
  if (shared.count > kCandidates) {
    lowest = reached_by_exactly(row, lowest, top, shared.run);
    if (threadIdx.x == 0) {
      shared.count = 0;
    }
    __syncthreads();
    collect(row, lowest, largest, shared);
    __syncthreads();
  }
  const uint64_t total = sums_of_block(sum, shared.run.of_warps).total;
  const double log_total = log(static_cast<double>(total) / static_cast<double>(kUnits));
  const auto log_prob = [&](float logit) {
    return static_cast<float>(double{logit} - double{largest} - log_total);
  };
  const unsigned count = min(shared.count, kCandidates);
  if (threadIdx.x < count) {
    const uint64_t own = shared.candidates[threadIdx.x];
    int place = 0;
    for (unsigned i = 0; i < count; ++i) {
      place += shared.candidates[i] > own ? 1 : 0;
    }
    if (place < top) {
      result.top_tokens[place] = row.id_of(own);
      result.top_log_probs[place] = log_prob(row.logit_of(own));
    }
  }
  if (threadIdx.x == 0) {
    result.finite = 1;
    result.token = token;
    result.log_prob = token >= 0 && token < vocabulary ? log_prob(row.logits[token]) : NAN;
  }
}

}  // namespace

void log_probs_cuda(const Tensor& rows, const Tensor& tokens, int64_t first_row,
                    const Tensor& logits, Tensor results, ExecContext& ctx) {
  launch(ctx, log_probs_kernel,
         {.blocks = static_cast<unsigned>(rows.size(0)), .threads = kThreads},
         static_cast<const LogProbRow*>(rows.raw()),
         static_cast<const int32_t*>(tokens.empty() ? nullptr : tokens.raw()),
         static_cast<const float*>(logits.raw()), static_cast<int>(logits.size(1)), first_row,
         static_cast<LogProbs*>(results.raw()));
}

}  // namespace sparsellm
