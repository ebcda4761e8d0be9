// What becomes of a step's logits, row by row, where one of several requests has ended.

#include "engine/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

constexpr int64_t kVocabulary = 50;
constexpr int32_t kUntouched = -7;

Sequence sequence_of(Request request) {
  request.sampling.temperature = 0.0f;
  Sequence sequence;
  sequence.tokens = request.prompt;
  sequence.submission = std::make_shared<const Submission>(
      Submission{.id = 1, .request = std::move(request), .on_token = {}});
  return sequence;
}

int32_t largest(const Tensor& values, int64_t row) {
  const float* const begin = values.row<float>(row);
  return static_cast<int32_t>(std::max_element(begin, begin + kVocabulary) - begin);
}

class Choose : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, Choose, ::testing::Values(1, 2, 5));

// Of five, the second has ended before and the third ends when it sees its logits.
TEST_P(Choose, OthersGoOnWhereOneHasEnded) {
  ThreadPool threads(GetParam());
  const testing::GuardedTensor values = testing::Random(5).tensor(DType::f32, {5, kVocabulary});
  std::vector<Sequence> sequences;
  for (int i = 0; i < 5; ++i) {
    Request request{.prompt = {1, 2, 3}, .log_probs = 0, .prompt_log_probs = true};
    if (i == 2) {
      request.on_logits = [](int64_t, std::span<const float>) { throw Error("enough"); };
    }
    sequences.push_back(sequence_of(std::move(request)));
  }
  sequences[1].finish = FinishReason::cancelled;
  std::vector<LogitRow> rows;
  rows.reserve(sequences.size());
  for (Sequence& sequence : sequences) {
    rows.push_back({.sequence = &sequence, .position = 2, .choice = std::ssize(rows)});
  }
  rows[3].position = 1;  // in the prompt: nothing is chosen after it
  rows[3].choice.reset();
  std::vector<Choice> choices(5, Choice{.token = kUntouched, .log_probs = {}, .error = {}});
  choose(rows, values.view(), {}, threads, choices);
  for (int64_t i : {0, 4}) {
    const Choice& choice = choices[static_cast<size_t>(i)];
    EXPECT_EQ(choice.token, largest(values.view(), i)) << i;
    EXPECT_EQ(choice.error, "");
    ASSERT_TRUE(choice.log_probs.has_value());
    EXPECT_EQ(sequences[static_cast<size_t>(i)].reported, 3);
  }
  for (size_t i : {1, 2, 3}) {
    EXPECT_EQ(choices[i].token, kUntouched) << i;
  }
  EXPECT_EQ(sequences[2].finish, FinishReason::error);
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_EQ(sequences[i].prompt_log_probs.size(), i == 3 ? 1u : 0u) << i;
  }
}

// An error of one choice is an error of that one.
TEST_P(Choose, OneThatCannotBeChosenIsAnErrorOfItsOwn) {
  ThreadPool threads(GetParam());
  const testing::GuardedTensor values = testing::Random(6).tensor(DType::f32, {3, kVocabulary});
  std::vector<Sequence> sequences;
  sequences.reserve(3);
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(sequence_of({.prompt = {4}}));
  }
  values.view().row<float>(0)[9] = std::numeric_limits<float>::quiet_NaN();
  std::vector<LogitRow> rows;
  rows.reserve(sequences.size());
  for (Sequence& sequence : sequences) {
    rows.push_back({.sequence = &sequence, .position = 0, .choice = 2 - std::ssize(rows)});
  }
  std::vector<Choice> choices(3);
  choose(rows, values.view(), {}, threads, choices);
  EXPECT_NE(choices[2].error, "");
  for (int64_t i : {1, 2}) {
    const Choice& choice = choices[static_cast<size_t>(2 - i)];
    EXPECT_EQ(choice.error, "");
    EXPECT_EQ(choice.token, largest(values.view(), i));
    EXPECT_FALSE(choice.log_probs.has_value());
  }
}

}  // namespace
}  // namespace sparsellm
