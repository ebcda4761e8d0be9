#include <algorithm>
#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/base/workspace.h"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/token_votes.h"
#include "sparse/activation/token_votes_cuda.h"

namespace sparsellm {
namespace {

constexpr int kVoteWarps = 8;
constexpr int kVoteTokens = 8;          // for which sign words are loaded once
constexpr int64_t kTokensAtOnce = 256;  // whose votes are in the workspace
constexpr int kVectorOfWords = 4;       // u32 that a lane loads at once, where rows are aligned
constexpr int kVectorBytes = kVectorOfWords * sizeof(uint32_t);

// Sign words of rows of a weight.
struct RowSigns {
  const uint32_t* signs;
  int64_t signs_stride;
  const uint32_t* nonzero;  // null: no element is zero
  int64_t nonzero_stride;
  int64_t rows;
  int words;
};

// What token_votes::pack_cuda() made of some tokens.
struct TokenPlanes {
  const uint32_t* words;
  int token_stride;
  int plane_stride;
  const int32_t* totals;
  int tokens;
};

template <int kWords>
struct alignas(kWords * sizeof(uint32_t)) WordVector {
  uint32_t words[kWords];

  __device__ static WordVector load(const uint32_t* from) {
    return *reinterpret_cast<const WordVector*>(from);
  }
};

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

// A warp counts the votes of kVoteTokens tokens on a row: lanes have every 32nd vector of words,
// and lane t the result of the group's token t.
template <int kPlanes, int kWords, class Store>
__global__ void __launch_bounds__(kVoteWarps* kWarpSize)
    count_votes_kernel(RowSigns w, TokenPlanes x, Store store) {
  launch_dependents();
  wait_on_dependencies();
  using Vector = WordVector<kWords>;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kVoteWarps + threadIdx.x / kWarpSize;
  if (row >= w.rows) {
    return;
  }
  const int first = static_cast<int>(blockIdx.y) * kVoteTokens;
  const int tokens = min(x.tokens - first, kVoteTokens);
  const uint32_t* const signs = w.signs + row * w.signs_stride;
  const uint32_t* const nonzero =
      w.nonzero == nullptr ? nullptr : w.nonzero + row * w.nonzero_stride;
  int negative[kVoteTokens] = {};
  int total[kVoteTokens] = {};
  for (int word = lane * kWords; word < w.words; word += kWarpSize * kWords) {
    const Vector of_row = Vector::load(signs + word);
    Vector counted;
    if (nonzero != nullptr) {
      counted = Vector::load(nonzero + word);
    }
#pragma unroll
    for (int t = 0; t < kVoteTokens; ++t) {
      if (t >= tokens) {
        break;
      }
      const uint32_t* const token = x.words + (first + t) * int64_t{x.token_stride} + word;
      Vector differ = Vector::load(token);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        differ.words[i] ^= of_row.words[i];
        differ.words[i] &= nonzero != nullptr ? counted.words[i] : ~0u;
      }
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        const Vector votes = Vector::load(token + (1 + plane) * x.plane_stride);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          negative[t] += __popc(differ.words[i] & votes.words[i]) << plane;
          if (nonzero != nullptr) {
            total[t] += __popc(counted.words[i] & votes.words[i]) << plane;
          }
        }
      }
    }
  }
  int negative_of_lane = 0;
  int total_of_lane = 0;
#pragma unroll
  for (int t = 0; t < kVoteTokens; ++t) {
    const int n = __reduce_add_sync(~0u, negative[t]);
    const int all = __reduce_add_sync(~0u, total[t]);
    negative_of_lane = lane == t ? n : negative_of_lane;
    total_of_lane = lane == t ? all : total_of_lane;
  }
  if (lane < tokens) {
    const int all = nonzero != nullptr ? total_of_lane : x.totals[first + lane];
    store(first + lane, row, negative_of_lane, all - negative_of_lane);
  }
}

bool is_aligned(const Tensor& words) {
  const auto stride_bytes = static_cast<uintptr_t>(words.row_stride()) * sizeof(uint32_t);
  return (reinterpret_cast<uintptr_t>(words.raw()) | stride_bytes) % kVectorBytes == 0;
}

template <int kPlanes, class Store>
void launch_count(const SignWords& w, const TokenPlanes& x, const Store& store, ExecContext& ctx) {
  const int64_t words = sign_word_count(w.columns);
  const bool has_vectors = words % kVectorOfWords == 0 && is_aligned(w.signs) &&
                           (w.nonzero.empty() || is_aligned(w.nonzero));
  const RowSigns rows{.signs = w.signs.data<uint32_t>(),
                      .signs_stride = w.signs.row_stride(),
                      .nonzero = w.nonzero.empty() ? nullptr : w.nonzero.data<uint32_t>(),
                      .nonzero_stride = w.nonzero.row_stride(),
                      .rows = w.rows(),
                      .words = static_cast<int>(words)};
  const int64_t blocks = (w.rows() + kVoteWarps - 1) / kVoteWarps;
  require(blocks <= INT32_MAX, "votes on {} rows are too many", w.rows());
  launch(ctx,
         has_vectors ? count_votes_kernel<kPlanes, kVectorOfWords, Store>
                     : count_votes_kernel<kPlanes, 1, Store>,
         {.blocks = dim3(static_cast<unsigned>(blocks),
                         static_cast<unsigned>((x.tokens + kVoteTokens - 1) / kVoteTokens)),
          .threads = kVoteWarps * kWarpSize,
          .shared_bytes = 0,
          .pdl = true},
         rows, x, store);
}

// Calls store_of(first, count) for what is to be done with the votes of those tokens.
template <class StoreOf>
void count_all(const Tensor& x, const SignWords& w, Votes votes, ExecContext& ctx,
               StoreOf&& store_of) {
  const int planes = token_votes::planes_of(votes);
  const int64_t token_words = token_votes::words_of(w.columns, votes);
  for (int64_t first = 0; first < x.size(0); first += kTokensAtOnce) {
    const int64_t tokens = std::min(x.size(0) - first, kTokensAtOnce);
    auto scratch = ctx.workspace.scope();
    const Tensor words = scratch.tensor(DType::u32, {tokens, token_words});
    const Tensor totals = scratch.tensor(DType::i32, {tokens});
    token_votes::pack_cuda(x.rows(first, tokens), votes, words, totals, ctx);
    const TokenPlanes packed{.words = words.data<uint32_t>(),
                             .token_stride = static_cast<int>(token_words),
                             .plane_stride = static_cast<int>(token_words / (1 + planes)),
                             .totals = totals.data<int32_t>(),
                             .tokens = static_cast<int>(tokens)};
    const auto store = store_of(first, tokens);
    if (planes == 1) {
      launch_count<1>(w, packed, store, ctx);
    } else {
      launch_count<vote_kernels::kMaxPlanes>(w, packed, store, ctx);
    }
  }
}

}  // namespace

int64_t sign_predictor_workspace_bytes_cuda(int64_t columns, int64_t tokens) {
  const int64_t at_once = std::min(tokens, kTokensAtOnce);
  return Workspace::tensor_bytes(DType::u32,
                                 {at_once, token_votes::words_of(columns, Votes::weighted)}) +
         Workspace::tensor_bytes(DType::i32, {at_once});
}

void predict_active_cuda(const Tensor& x, const SignWords& w, const SignPrediction& how,
                         Tensor active, ExecContext& ctx) {
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
