#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "engine/log_probability.h"
#include "kernels/base/cuda_graph.h"
#include "tests/kernels/log_probs_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

std::vector<LogProbRow> rows_with_tops(int32_t vocabulary, Random& random) {
  std::vector<LogProbRow> rows;
  for (const int32_t top : {0, 1, 2, 5, 19, 20}) {
    rows.push_back({.row = static_cast<int32_t>(rows.size()),
                    .token = static_cast<int32_t>(random.below(vocabulary)),
                    .top = top});
  }
  return rows;
}

TEST_F(LogProbsOfRows, AllShapesAndVocabularies) {
  for (const int32_t vocabulary :
       {1, 2, 3, 7, 19, 20, 21, 100, 1023, 1024, 1025, 4099, 32000, 50272, 50273, 151936}) {
    for (const Shape& shape : kShapes) {
      const std::vector<LogProbRow> rows = rows_with_tops(vocabulary, random);
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), vocabulary, random);
      expect_naive(shape.name, logits, vocabulary, rows);
    }
  }
}

// As many rows as a step of an echoed prompt has, and more than there are multiprocessors.
TEST_F(LogProbsOfRows, ManyRows) {
  constexpr int32_t kRows = 600;
  constexpr int32_t kVocabulary = 1013;
  const std::vector<float> logits = random_logits(kShapes[1], kRows, kVocabulary, random);
  std::vector<LogProbRow> rows;
  for (int32_t row = 0; row < kRows; ++row) {
    rows.push_back({.row = row,
                    .token = static_cast<int32_t>(random.below(kVocabulary)),
                    .top = static_cast<int32_t>(random.below(21))});
  }
  expect_naive("many rows", logits, kVocabulary, rows);
}

// What the engine tells of the same logits on the host.
TEST_F(LogProbsOfRows, AreTheEngines) {
  constexpr int32_t kVocabulary = 32001;
  for (const Shape& shape : kShapes) {
    const std::vector<float> logits = random_logits(shape, 1, kVocabulary, random);
    const LogProbRow row{.row = 0, .token = 77, .top = 20};
    const LogProbs told = on_gpu(logits, kVocabulary, {&row, 1}).front();
    const TokenLogProbs expected = token_log_probs(logits, row.token, row.top);
    const auto expect_near = [&](float got, float value) {
      EXPECT_TRUE(got == value || std::abs(got - value) <= 5e-6f + 3e-7f * std::abs(value))
          << shape.name << ": " << got << " instead of " << value;
    };
    expect_near(told.log_prob, expected.token.log_prob);
    for (size_t i = 0; i < expected.top.size(); ++i) {
      EXPECT_EQ(told.top_tokens[i], expected.top[i].token) << shape.name << ", place " << i;
      expect_near(told.top_log_probs[i], expected.top[i].log_prob);
    }
  }
}

// The largest in vectors that few of the threads have: with 8 to 19 of these, more than there is
// room for at first.
TEST_F(LogProbsOfRows, TheLargestInFewThreads) {
  constexpr int32_t kVocabulary = 151936;
  for (const int32_t threads : {1, 5, 8, 12, 19, 20, 21, 60}) {
    std::vector<float> logits = random_logits(kShapes[1], 2, kVocabulary, random);
    for (int32_t id = 0; id < 2 * kVocabulary; ++id) {
      if (id % kVocabulary / 4 % 1024 < threads) {
        // Also many equal ones in the second row.
        logits[static_cast<size_t>(id)] =
            40.0f + (id < kVocabulary ? static_cast<float>(random.uniform(0, 1))
                                      : static_cast<float>(random.below(3)));
      }
    }
    const std::vector<LogProbRow> rows{{.row = 0, .token = 3, .top = 20},
                                       {.row = 1, .token = 9999, .top = 20},
                                       {.row = 1, .token = 9999, .top = 1}};
    expect_naive("few threads", logits, kVocabulary, rows);
  }
}

// Under --deterministic a result must not depend on where its row lies.
TEST_F(LogProbsOfRows, BitsDependOnTheRowAlone) {
  for (const int32_t vocabulary : {333, 32001, 50257}) {
    const std::vector<float> logits = random_logits(kShapes[1], 1, vocabulary, random);
    std::vector<float> copies;
    std::vector<LogProbRow> rows;
    for (int32_t row = 0; row < 9; ++row) {
      copies.insert(copies.end(), logits.begin(), logits.end());
      rows.push_back({.row = row, .token = 17, .top = 20});
    }
    const std::vector<LogProbs> told = on_gpu(copies, vocabulary, rows);
    for (const LogProbs& one : told) {
      EXPECT_EQ(one.log_prob, told[0].log_prob) << vocabulary;
      EXPECT_TRUE(std::ranges::equal(one.top_tokens, told[0].top_tokens)) << vocabulary;
      EXPECT_TRUE(std::ranges::equal(one.top_log_probs, told[0].top_log_probs)) << vocabulary;
    }
  }
}

TEST_F(LogProbsOfRows, InAGraph) {
  constexpr int64_t kVocabulary = 2000;
  const GuardedTensor logits(DType::f32, {1, kVocabulary}, Layout::contiguous, kGpu);
  const LogProbRow row{.row = 0, .token = -1, .top = 3};
  const GuardedTensor rows = upload(DType::i32, {1, kLogProbRowWords}, &row);
  const GuardedTensor tokens(DType::i32, {1}, Layout::contiguous, kGpu);
  const GuardedTensor results(DType::i32, {1, kLogProbsWords}, Layout::contiguous, kGpu);
  const CudaGraph graph(gpu->cuda, [&] {
    log_probs(rows.view(), tokens.view(), 0, logits.view(), results.view(), gpu->exec);
  });
  for (int32_t token = 0; token < 3; ++token) {
    const std::vector<float> values = random_logits(kShapes[1], 1, kVocabulary, random);
    copy_bytes(kGpu, logits.view().raw(), {}, values.data(), logits.view().bytes());
    copy_bytes(kGpu, tokens.view().raw(), {}, &token, tokens.view().bytes());
    graph.launch();
    gpu->cuda.synchronize();
    const std::vector<LogProbs> expected = on_gpu(values, kVocabulary, {&row, 1}, {&token, 1});
    const std::vector<int32_t> words = download(results.view());
    EXPECT_EQ(words[1], token);
    EXPECT_EQ(words[3], expected[0].top_tokens[0]);
  }
}

TEST_F(LogProbsOfRows, RefusesOtherOperands) {
  const auto tensor = [](DType dtype, std::initializer_list<int64_t> sizes) {
    return GuardedTensor(dtype, sizes, Layout::contiguous, kGpu);
  };
  const GuardedTensor rows = tensor(DType::i32, {3, kLogProbRowWords});
  const GuardedTensor logits = tensor(DType::f32, {3, 10});
  const GuardedTensor results = tensor(DType::i32, {3, kLogProbsWords});
  const GuardedTensor tokens = tensor(DType::i32, {3});
  const auto refused = [&](const Tensor& r, const Tensor& t, int64_t first, const Tensor& l,
                           const Tensor& out, std::string_view why) {
    EXPECT_TRUE(throws_error([&] { log_probs(r, t, first, l, out, gpu->exec); }, why));
  };
  const Tensor& t = tokens.view();
  refused(tensor(DType::i32, {3, 4}).view(), t, 0, logits.view(), results.view(), "rows");
  refused(rows.view(), logits.view(), 0, logits.view(), results.view(), "tokens");
  refused(rows.view(), t, 0, tensor(DType::f16, {3, 10}).view(), results.view(), "logits");
  refused(rows.view(), t, 0, tensor(DType::f32, {3, 0}).view(), results.view(),
          "a vocabulary of 0");
  refused(rows.view(), t, 0, logits.view().columns(1, 4), results.view(), "row strides");
  refused(rows.view(), t, -1, logits.view(), results.view(), "the first row is -1");
  refused(rows.view(), t, 0, logits.view(), tensor(DType::i32, {2, kLogProbsWords}).view(),
          "results");
  const GuardedTensor wide = tensor(DType::i32, {3, kLogProbsWords + kLogProbRowWords});
  refused(wide.view().rows(0, 1).columns(0, kLogProbRowWords), t, 0, logits.view(),
          wide.view().rows(0, 1).columns(0, kLogProbsWords), "overlap");
}

TEST(LogProbsOnCpu, AreTheEngines) {
  CpuContext cpu;
  const GuardedTensor rows(DType::i32, {1, kLogProbRowWords});
  const GuardedTensor logits(DType::f32, {1, 4});
  const GuardedTensor results(DType::i32, {1, kLogProbsWords});
  EXPECT_TRUE(throws_error(
      [&] { log_probs(rows.view(), Tensor(), 0, logits.view(), results.view(), cpu.exec); },
      "engine"));
}

}  // namespace
}  // namespace sparsellm
