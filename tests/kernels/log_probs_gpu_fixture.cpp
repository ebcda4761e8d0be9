#include "tests/kernels/log_probs_gpu_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace sparsellm::testing {
namespace {

// Of floats near the largest ones a logarithm of some units would be lost in the difference.
struct NaiveNormalizer {
  explicit NaiveNormalizer(std::span<const float> logits)
      : largest(*std::max_element(logits.begin(), logits.end())) {
    double total = 0.0;
    for (const float logit : logits) {
      total += std::exp(logit - largest);
    }
    log_total = std::log(total);
  }

  double log_prob(float logit) const { return logit - largest - log_total; }

  double largest;
  double log_total = 0.0;
};

std::vector<int32_t> naive_ranking(std::span<const float> logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  return ids;
}

// The sum is right to some 1e-7, a logit less the largest to a rounding.
double tolerance_of(double log_prob) { return 2e-6 + 2.5e-7 * std::abs(log_prob); }

}  // namespace

std::vector<LogProbs> LogProbsOfRows::on_gpu(std::span<const float> logits, int64_t vocabulary,
                                             std::span<const LogProbRow> rows,
                                             std::span<const int32_t> tokens, int64_t first_row) {
  const GuardedTensor logits_gpu =
      upload(DType::f32, {std::ssize(logits) / vocabulary, vocabulary}, logits.data());
  const GuardedTensor rows_gpu =
      upload(DType::i32, {std::ssize(rows), kLogProbRowWords}, rows.data());
  const GuardedTensor tokens_gpu = i32_tensor(tokens, kGpu);
  const GuardedTensor results(DType::i32, {std::ssize(rows), kLogProbsWords}, Layout::contiguous,
                              kGpu);
  log_probs(rows_gpu.view(), tokens.empty() ? Tensor() : tokens_gpu.view(), first_row,
            logits_gpu.view(), results.view(), gpu->exec);
  gpu->cuda.synchronize();
  EXPECT_TRUE(results.guards_intact());
  const std::vector<std::byte> bytes = bytes_of(results.view());
  std::vector<LogProbs> told(rows.size());
  if (!told.empty()) {
    std::memcpy(told.data(), bytes.data(), bytes.size());
  }
  return told;
}

void LogProbsOfRows::expect_naive(std::string_view what, std::span<const float> logits,
                                  int64_t vocabulary, std::span<const LogProbRow> rows,
                                  std::span<const int32_t> tokens, int64_t first_row) {
  const std::vector<LogProbs> told = on_gpu(logits, vocabulary, rows, tokens, first_row);
  const auto size = static_cast<size_t>(vocabulary);
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(fmt::format("{}, vocabulary {}, row {}, top {}", what, vocabulary, rows[i].row,
                             rows[i].top));
    const auto at = static_cast<size_t>(rows[i].row - first_row);
    const std::span<const float> row = logits.subspan(at * size, size);
    const int32_t token =
        rows[i].token < 0 ? tokens[static_cast<size_t>(-1 - rows[i].token)] : rows[i].token;
    const NaiveNormalizer normalizer(row);
    const auto expect_value = [&](float got, int32_t id) {
      const double expected = normalizer.log_prob(row[static_cast<size_t>(id)]);
      if (std::isinf(static_cast<float>(expected))) {
        ASSERT_EQ(got, -std::numeric_limits<float>::infinity()) << "token " << id;
      } else {
        ASSERT_NEAR(got, expected, tolerance_of(expected)) << "token " << id;
      }
    };
    ASSERT_EQ(told[i].finite, 1);
    ASSERT_EQ(told[i].token, token);
    expect_value(told[i].log_prob, token);
    if (rows[i].top == 0) {
      continue;
    }
    const std::vector<int32_t> ranking = naive_ranking(row);
    const size_t top = std::min(static_cast<size_t>(rows[i].top), size);
    for (size_t place = 0; place < top; ++place) {
      ASSERT_EQ(told[i].top_tokens[place], ranking[place]) << "place " << place;
      expect_value(told[i].top_log_probs[place], ranking[place]);
    }
  }
}

}  // namespace sparsellm::testing
