#include "kernels/base/launch.cuh"
#include "kernels/counter_random.h"
#include "kernels/device/logit_ranks.cuh"
#include "kernels/sample_device.h"

namespace sparsellm {
namespace {

using namespace logit_ranks;

constexpr uint64_t kLargestWeight = uint64_t{1} << 40;

// exp((logit - largest) / temperature) in units of 2^-40.
struct Weights {
  float largest;
  double inverse_temperature;

  __device__ uint64_t of(float logit) const {
    constexpr double kNegligible = -29.0;  // exp of it is less than half a unit
    if (logit == largest) {                // 0 * infinity if the temperature is tiny
      return kLargestWeight;
    }
    const double exponent = (double{logit} - double{largest}) * inverse_temperature;
    if (!(exponent > kNegligible)) {  // also of a NaN
      return 0;
    }
    return __double2ull_rn(exp(exponent) * static_cast<double>(kLargestWeight));
  }
};

// 37 KiB.
struct Shared {
  RunShared run;
  unsigned filter[kFilterWords];
};

// The first id where the sum of the weights of all ids up to it exceeds random / 2^53 of the total.
// The 32 warps add up one section each; the section where the sum is exceeded is divided again.
template <class WeightInRange>
__device__ int drawn_id(uint64_t random, IdRange range, WeightInRange weight_in, Shared& shared) {
  const bool is_last_lane = lane() == kWarpSize - 1;
  uint64_t rest = 0;
  for (bool is_whole = true;; is_whole = false) {
    const int section = (range.end - range.begin + kWarps - 1) / kWarps;
    const int begin = min(range.begin + warp() * section, range.end);
    const uint64_t sum = inclusive_sum_of_warp(
        weight_in(IdRange{.begin = begin, .end = min(begin + section, range.end)}));
    __syncthreads();  // whoever used of_warps last is done
    if (is_last_lane) {
      shared.run.of_warps[warp()] = sum;
    }
    __syncthreads();
    const uint64_t of_lane = shared.run.of_warps[lane()];
    const uint64_t up_to_lane = inclusive_sum_of_warp(of_lane);
    if (is_whole) {
      const uint64_t total = __shfl_sync(kAllLanes, up_to_lane, kWarps - 1);
      rest = __umul64hi(random << 11, total);
    }
    const int chosen = __ffs(__ballot_sync(kAllLanes, up_to_lane > rest)) - 1;
    rest -= __shfl_sync(kAllLanes, up_to_lane - of_lane, chosen);
    range.begin += chosen * section;
    range.end = min(range.begin + section, range.end);
    if (section == 1) {
      return range.begin;
    }
  }
}

// The smallest whole number not below fraction * total; `fraction` in (0, 1), from 2^-40 on exact.
__device__ uint64_t ceiling_of_part(float fraction, uint64_t total) {
  const auto fraction_bits = static_cast<uint64_t>(double{fraction} * 0x1p64);
  const uint64_t whole = __umul64hi(fraction_bits, total);
  return max(whole + (fraction_bits * total != 0 ? 1 : 0), uint64_t{1});
}

// Every thread of the block gets the result.
__device__ int token_of(const RankedLogits& row, const SampleRow& params, Shared& shared) {
  bool infinite = false;
  const uint64_t best_of_thread = best_rank(row, infinite);
  if (__syncthreads_or(infinite)) {
    return kNoToken;
  }
  const uint64_t best = largest_of_block(best_of_thread, shared.run.of_warps);
  if (best == kNoRank) {
    return kNoToken;
  }
  if (params.temperature == 0.0f || params.top_k == 1) {
    return row.id_of(best);
  }

  const IdRange all{0, row.vocabulary};
  const auto for_each_from = [&](uint64_t from, auto visit) {
    row.for_each_rank(all, threadIdx.x, kThreads, from, visit);
  };
  uint64_t lowest = row.lowest_rank();
  if (params.top_k > 0 && params.top_k < row.vocabulary) {
    const auto one = [](uint64_t) { return uint64_t{1}; };
    const auto count = [&](uint64_t) { return static_cast<uint64_t>(params.top_k); };
    // The top_k-th of the best ranks of the threads is a bound that leaves few candidates.
    const auto for_best_from = [&](uint64_t from, auto visit) {
      if (best_of_thread >= from) {
        visit(best_of_thread);
      }
    };
    lowest = lowest_of_run(lowest, row.rank_bits(), for_best_from, one, count, shared.run);
    lowest = lowest_of_run(lowest, row.rank_bits(), for_each_from, one, count, shared.run);
  }

  const Weights weights{.largest = row.logit_of(best),
                        .inverse_temperature = 1.0 / double{params.temperature}};
  const auto weight = [&](uint64_t rank) { return weights.of(row.logit_of(rank)); };
  if (params.top_p < 1.0f) {
    const auto part = [&](uint64_t total) { return ceiling_of_part(params.top_p, total); };
    lowest = lowest_of_run(lowest, row.rank_bits(), for_each_from, weight, part, shared.run);
  }

  const auto least_weight =
      static_cast<uint64_t>(ceil(double{params.min_p} * static_cast<double>(kLargestWeight)));
  const auto weight_in = [&](IdRange range) {
    uint64_t sum = 0;
    row.for_each_rank(range, lane(), kWarpSize, lowest, [&](uint64_t rank) {
      const uint64_t own = weight(rank);
      sum += own >= least_weight ? own : 0;
    });
    return sum;
  };
  return drawn_id(uniform_bits(params.seed, params.index), all, weight_in, shared);
}

// One block per row: a row of 128k logits is 0.5 MB, which one multiprocessor reads from the L2 in
// a few microseconds. A greedy row is read once; top_k and top_p read it again two or three times
// each, the draw about once. Sums are whole numbers: any order of the additions gives the
// same.
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, int vocabulary, const SampleRow* rows, const int32_t* banned,
                  int banned_count, int32_t* tokens) {
  __shared__ Shared shared;
  const SampleRow& params = rows[blockIdx.x];
  if (params.slot < 0) {
    return;
  }
  const RankedLogits row = RankedLogits::of_row(
      logits + int64_t{blockIdx.x} * vocabulary, vocabulary,
      {.ids = banned, .count = params.use_banned != 0 ? banned_count : 0, .filter = shared.filter});
  if (row.banned.count > 0) {
    shared.filter[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.banned.count; i += kThreads) {
      const int32_t id = banned[i];
      if (id >= 0 && id < vocabulary) {
        atomicOr(&shared.filter[id / 32 % kFilterWords], 1u << id % 32);
      }
    }
    __syncthreads();
  }
  const int token = token_of(row, params, shared);
  if (threadIdx.x == 0) {
    tokens[params.slot] = token;
  }
}

}  // namespace

void sample_cuda(const Tensor& logits, const Tensor& rows, const Tensor& banned, Tensor tokens,
                 ExecContext& ctx) {
  launch(ctx, sample_kernel, {.blocks = static_cast<unsigned>(logits.size(0)), .threads = kThreads},
         static_cast<const float*>(logits.raw()), static_cast<int>(logits.size(1)),
         static_cast<const SampleRow*>(rows.raw()),
         static_cast<const int32_t*>(banned.empty() ? nullptr : banned.raw()),
         banned.empty() ? 0 : static_cast<int>(banned.size(0)),
         static_cast<int32_t*>(tokens.raw()));
}

}  // namespace sparsellm
