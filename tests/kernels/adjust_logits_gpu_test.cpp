#include <limits>
#include <vector>

#include "tests/kernels/adjust_logits_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

TEST_F(AdjustLogits, AllPenaltiesOnAllShapes) {
  for (const int64_t vocabulary : {1, 2, 7, 100, 1000, 4099}) {
    for (const Shape& shape : kShapes) {
      const std::vector<Adjusted> sequences = random_sequences(vocabulary);
      expect_engines(shape.name, random_logits(shape, std::ssize(sequences), vocabulary, random),
                     vocabulary, sequences);
    }
  }
}

TEST_F(AdjustLogits, LargeVocabularies) {
  for (const int64_t vocabulary : {32000, 50273, 151936}) {
    std::vector<Adjusted> sequences = random_sequences(vocabulary);
    std::vector<Adjusted> some;
    for (size_t i = 3; i < sequences.size(); i += 9) {
      some.push_back(sequences[i]);
      some.back().row = static_cast<int32_t>(some.size()) - 1;
    }
    for (const size_t shape : {size_t{1}, size_t{3}, size_t{4}}) {
      expect_engines(kShapes[shape].name,
                     random_logits(kShapes[shape], std::ssize(some), vocabulary, random),
                     vocabulary, some);
    }
  }
}

// As many adjustments as a row may have, with and without the latest token among them.
TEST_F(AdjustLogits, TheLongestLists) {
  constexpr int64_t kVocabulary = 32000;
  const std::vector<int32_t> ids = random.permutation(kVocabulary);
  for (const bool again : {false, true}) {
    Adjusted sequence;
    sequence.row = 1;
    sequence.prompt_length = 100;
    sequence.seed = 3;
    sequence.tokens.assign(ids.begin(), ids.begin() + kMaxRowAdjustments - 1);
    sequence.tokens.push_back(again ? ids[70] : ids.back());
    sequence.params.temperature = 0.8f;
    sequence.params.repetition_penalty = 1.2f;
    sequence.params.presence_penalty = 0.5f;
    const std::vector<float> logits = random_logits(kShapes[1], 3, kVocabulary, random);
    expect_engines("a long list", logits, kVocabulary, {&sequence, 1});
  }
}

// The bits of what is forbidden differ from every logit of a model, and no sum of weights has them.
TEST_F(AdjustLogits, ForbiddenTokens) {
  for (const int64_t vocabulary : {3, 40, 3000}) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int32_t top_k : {0, 2}) {
        for (const float top_p : {1.0f, 0.5f}) {
          std::vector<Adjusted> sequences(4);
          for (size_t i = 0; i < sequences.size(); ++i) {
            Adjusted& one = sequences[i];
            one.row = static_cast<int32_t>(i);
            one.tokens = {1};
            one.params.temperature = temperature;
            one.params.top_k = top_k;
            one.params.top_p = top_p;
            // All but one; all; all with a bias besides; the first half.
            const int64_t allowed = i == 0 ? vocabulary / 2 : vocabulary;
            const int64_t end = i == 3 ? vocabulary / 2 : vocabulary;
            for (int32_t id = 0; id < end; ++id) {
              if (id != allowed) {
                one.params.logit_bias.push_back({.token = id, .bias = kForbidden});
              }
            }
          }
          sequences[2].params.repetition_penalty = 2.0f;
          expect_engines("forbidden", random_logits(kShapes[1], 4, vocabulary, random), vocabulary,
                         sequences);
        }
      }
    }
  }
}

TEST_F(AdjustLogits, RefusesOtherOperands) {
  const auto tensor = [](DType dtype, std::initializer_list<int64_t> sizes) {
    return GuardedTensor(dtype, sizes, Layout::contiguous, kGpu);
  };
  const GuardedTensor rows = tensor(DType::i32, {2, kAdjustedRowWords});
  const GuardedTensor tokens = tensor(DType::i32, {2});
  const GuardedTensor list = tensor(DType::i32, {5, kLogitAdjustmentWords});
  const GuardedTensor logits = tensor(DType::f32, {2, 10});
  const auto refused = [&](const Tensor& r, const Tensor& t, const Tensor& a, int64_t first,
                           const Tensor& l, std::string_view why) {
    EXPECT_TRUE(throws_error([&] { adjust_logits(r, t, a, first, l, gpu->exec); }, why));
  };
  refused(tensor(DType::i32, {2, 7}).view(), tokens.view(), list.view(), 0, logits.view(), "rows");
  refused(rows.view(), logits.view(), list.view(), 0, logits.view(), "tokens");
  refused(rows.view(), tokens.view(), tensor(DType::i32, {5, 4}).view(), 0, logits.view(),
          "adjustments");
  refused(rows.view(), tokens.view(), list.view(), -1, logits.view(), "the first row is -1");
  refused(rows.view(), tokens.view(), list.view(), 0, tensor(DType::f16, {2, 10}).view(), "logits");
  refused(rows.view(), tokens.view(), list.view(), 0, logits.view().columns(1, 4), "row strides");
  const Tensor same = list.view().rows(0, 0);
  EXPECT_NO_THROW(adjust_logits(rows.view().rows(0, 0), tokens.view(), same, 0, logits.view(),
                                gpu->exec));  // no rows
  EXPECT_TRUE(throws_error(
      [&] {
        restore_logits(rows.view(), tensor(DType::f32, {5, 3}).view(), 0, logits.view(), gpu->exec);
      },
      "adjustments"));
}

TEST(AdjustLogitsOnCpu, IsTheEngines) {
  CpuContext cpu;
  const GuardedTensor rows(DType::i32, {1, kAdjustedRowWords});
  const GuardedTensor tokens(DType::i32, {1});
  const GuardedTensor list(DType::i32, {1, kLogitAdjustmentWords});
  const GuardedTensor logits(DType::f32, {1, 4});
  EXPECT_TRUE(throws_error(
      [&] { adjust_logits(rows.view(), tokens.view(), list.view(), 0, logits.view(), cpu.exec); },
      "engine"));
  EXPECT_TRUE(throws_error(
      [&] { restore_logits(rows.view(), list.view(), 0, logits.view(), cpu.exec); }, "engine"));
}

}  // namespace
}  // namespace sparsellm
