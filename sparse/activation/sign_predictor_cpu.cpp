#include <algorithm>
#include <array>

#include "kernels/base/workspace.h"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/token_votes.h"

namespace sparsellm {
namespace {

using vote_kernels::CountVotes;
using vote_kernels::TokenVotes;

constexpr int64_t kTokens = 32;  // whose votes are in the workspace at a time
constexpr int64_t kRows = 64;    // whose sign words stay in the L1 while tokens pass by
// Words of sign words that are worth the attention of another thread.
constexpr int64_t kMinWords = 8 << 10;

CountVotes counter_for([[maybe_unused]] CpuIsa isa) {
#if defined(SPARSELLM_X86)
  switch (isa) {
    case CpuIsa::portable:
      break;
    case CpuIsa::avx2:
      return vote_kernels::kCountAvx2;
    case CpuIsa::avx512:
      return vote_kernels::kCountAvx512;
    case CpuIsa::avx512_vbmi2:
      return vote_kernels::kCountAvx512Vbmi2;
  }
#endif
  return vote_kernels::kCountPortable;
}

vote_kernels::SignRows rows_of(const SignWords& w, int64_t row, int64_t count) {
  return {.signs = w.signs.row<uint32_t>(row),
          .signs_stride = w.signs.row_stride(),
          .nonzero = w.nonzero.empty() ? nullptr : w.nonzero.row<uint32_t>(row),
          .nonzero_stride = w.nonzero.row_stride(),
          .words = sign_word_count(w.columns),
          .rows = count};
}

// The sums of votes of a token on some rows.
struct Counted {
  int64_t token;
  int64_t row;
  int64_t rows;
  const int32_t* negative;
  const int32_t* total;
};

// Calls use(counted) for all tokens and rows, on all threads.
template <class Use>
void for_each_count(const Tensor& x, const SignWords& w, Votes votes, ExecContext& ctx, Use&& use) {
  const CountVotes count = counter_for(ctx.isa);
  const int64_t words = token_votes::words_of(w.columns, votes);
  for (int64_t first = 0; first < x.size(0); first += kTokens) {
    const int64_t tokens = std::min(x.size(0) - first, kTokens);
    auto scratch = ctx.workspace.scope();
    const Tensor packed = scratch.tensor(DType::u32, {tokens, words});
    std::array<TokenVotes, kTokens> of_tokens;
    ctx.threads.parallel_for(tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        of_tokens[static_cast<size_t>(t)] =
            token_votes::pack(x.row<float>(first + t), w.columns, votes, packed.row<uint32_t>(t));
      }
    });
    const int64_t words_per_row = std::max<int64_t>(tokens * sign_word_count(w.columns), 1);
    ctx.threads.parallel_for(
        w.rows(), kMinWords / words_per_row + 1, [&](int64_t begin, int64_t end) {
          int32_t negative[kRows];
          int32_t total[kRows];
          for (int64_t row = begin; row < end; row += kRows) {
            const int64_t rows = std::min(end - row, kRows);
            for (int64_t t = 0; t < tokens; ++t) {
              count(of_tokens[static_cast<size_t>(t)], rows_of(w, row, rows), negative, total);
              use(Counted{first + t, row, rows, negative, total});
            }
          }
        });
  }
}

}  // namespace

int64_t sign_predictor_workspace_bytes_cpu(int64_t columns, int64_t tokens) {
  return Workspace::tensor_bytes(
      DType::u32, {std::min(tokens, kTokens), token_votes::words_of(columns, Votes::weighted)});
}

void predict_active_cpu(const Tensor& x, const SignWords& w, const SignPrediction& how,
                        Tensor active, ExecContext& ctx) {
  for_each_count(x, w, how.votes, ctx, [&](const Counted& counted) {
    uint8_t* const flags = active.row<uint8_t>(counted.token) + counted.row;
    for (int64_t i = 0; i < counted.rows; ++i) {
      const auto negative = static_cast<float>(counted.negative[i]);
      const auto positive = static_cast<float>(counted.total[i] - counted.negative[i]);
      flags[i] = how.alpha * positive < negative ? 0 : 1;
    }
  });
}

void count_votes_cpu(const Tensor& x, const SignWords& w, Votes votes, Tensor negative,
                     Tensor positive, ExecContext& ctx) {
  for_each_count(x, w, votes, ctx, [&](const Counted& counted) {
    int32_t* const to_negative = negative.row<int32_t>(counted.token) + counted.row;
    int32_t* const to_positive = positive.row<int32_t>(counted.token) + counted.row;
    for (int64_t i = 0; i < counted.rows; ++i) {
      to_negative[i] = counted.negative[i];
      to_positive[i] = counted.total[i] - counted.negative[i];
    }
  });
}

}  // namespace sparsellm
