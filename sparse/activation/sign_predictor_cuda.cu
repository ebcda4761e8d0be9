#include <algorithm>
#include <cstdint>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/launch.cuh"
#include "kernels/base/workspace.h"
#include "sparse/activation/cuda/count_votes.cuh"
#include "sparse/activation/cuda_workspace.h"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/token_votes_cuda.h"

namespace sparsellm {
namespace {

// What is done with the sums of votes of a token on a row.
struct StoreActive {
  uint8_t* active;
  int64_t stride;
  float alpha;

  __device__ void operator()(int token, int64_t row, int negative, int positive) const {
    const float bar = __fmul_rn(alpha, __int2float_rn(positive));
    active[token * stride + row] = bar < __int2float_rn(negative) ? 0 : 1;
  }
};
struct StoreVotes {
  int32_t* negative;
  int64_t negative_stride;
  int32_t* positive;
  int64_t positive_stride;

  __device__ void operator()(int token, int64_t row, int n, int p) const {
    negative[token * negative_stride + row] = n;
    positive[token * positive_stride + row] = p;
  }
};

bool is_aligned(const Tensor& words) {
  constexpr size_t kBytes = vote_products::kLaneWords * sizeof(uint32_t);
  const auto stride_bytes = static_cast<uintptr_t>(words.row_stride()) * sizeof(uint32_t);
  return (reinterpret_cast<uintptr_t>(words.raw()) | stride_bytes) % kBytes == 0;
}

vote_products::WeightBits bits_of(const Tensor& words) {
  return {.words = static_cast<const uint32_t*>(words.raw()), .stride = words.row_stride()};
}

template <class Store>
auto kernel_for(int groups, bool has_zeros, bool aligned) {
  using vote_products::count_votes_kernel;
  if (has_zeros) {
    return aligned ? count_votes_kernel<1, true, true, Store>
                   : count_votes_kernel<1, true, false, Store>;
  }
  if (groups == 2) {
    return count_votes_kernel<2, false, true, Store>;
  }
  return aligned ? count_votes_kernel<1, false, true, Store>
                 : count_votes_kernel<1, false, false, Store>;
}

template <class Store>
void launch_count(const SignWords& w, const vote_products::TokenVotes& x, const Store& store,
                  ExecContext& ctx) {
  const int64_t words = sign_word_count(w.columns);
  const bool has_zeros = !w.nonzero.empty();
  const vote_products::WeightSigns signs{.signs = bits_of(w.signs),
                                         .nonzero = bits_of(w.nonzero),
                                         .rows = w.rows(),
                                         .words = static_cast<int>(words)};
  const auto parts = [](int64_t all, int64_t most) { return (all + most - 1) / most; };
  const int64_t segments = std::max<int64_t>(parts(words, vote_products::kSegmentWords), 1);
  const int64_t warps = parts(segments, parts(segments, vote_products::kMostWarps));
  const int64_t units = parts(w.rows(), vote_products::kNeurons);
  const int64_t blocks = std::max(parts(units, vote_products::kMostUnits),
                                  std::min<int64_t>(units, cuda_state(ctx).multiprocessors));
  require(blocks <= INT32_MAX, "votes on {} rows are too many", w.rows());
  const bool aligned = words % vote_products::kLaneWords == 0 && is_aligned(w.signs) &&
                       (!has_zeros || is_aligned(w.nonzero));
  const int groups = aligned && !has_zeros && x.tokens > vote_products::kTokens ? 2 : 1;
  launch(ctx, kernel_for<Store>(groups, has_zeros, aligned),
         {.blocks = dim3(static_cast<unsigned>(blocks),
                         static_cast<unsigned>(parts(x.tokens, groups * vote_products::kTokens))),
          .threads = static_cast<unsigned>(warps * kWarpSize),
          .shared_bytes = 0,
          .pdl = true},
         signs, x, store);
}

// Calls store_of(first, count) for what is to be done with the votes of those tokens.
template <class StoreOf>
void count_all(const Tensor& x, const SignWords& w, Votes how, ExecContext& ctx,
               StoreOf&& store_of) {
  for (int64_t first = 0; first < x.size(0); first += kVotedTokens) {
    const int64_t tokens = std::min(x.size(0) - first, kVotedTokens);
    auto scratch = ctx.workspace.scope();
    const Tensor votes = scratch.tensor(DType::u8, {token_votes::byte_count(w.columns, tokens)});
    const Tensor totals = scratch.tensor(DType::i32, {tokens, 2});
    token_votes::write_bytes_cuda(x.rows(first, tokens), how, votes, totals, ctx);
    launch_count(w,
                 {.votes = static_cast<const uint4*>(votes.raw()),
                  .totals = static_cast<const int2*>(totals.raw()),
                  .tokens = static_cast<int>(tokens)},
                 store_of(first, tokens), ctx);
  }
}

}  // namespace

void predict_active_cuda(const Tensor& x, const SignWords& w, const SignPrediction& how,
                         Tensor active, ExecContext& ctx) {
  if (predict_few_cuda(x, w, how, active, ctx)) {
    return;
  }
  count_all(x, w, how.votes, ctx, [&](int64_t first, int64_t tokens) {
    const Tensor rows = active.rows(first, tokens);
    return StoreActive{
        .active = rows.data<uint8_t>(), .stride = rows.row_stride(), .alpha = how.alpha};
  });
}

void count_votes_cuda(const Tensor& x, const SignWords& w, Votes votes, Tensor negative,
                      Tensor positive, ExecContext& ctx) {
  count_all(x, w, votes, ctx, [&](int64_t first, int64_t tokens) {
    const Tensor n = negative.rows(first, tokens);
    const Tensor p = positive.rows(first, tokens);
    return StoreVotes{.negative = n.data<int32_t>(),
                      .negative_stride = n.row_stride(),
                      .positive = p.data<int32_t>(),
                      .positive_stride = p.row_stride()};
  });
}

}  // namespace sparsellm
