#include <limits>
#include <vector>

#include "tests/kernels/adjust_logits_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Of a hundred rows three are adjusted, and none.
TEST_F(AdjustLogits, OtherRowsStay) {
  constexpr int64_t kVocabulary = 333;
  const std::vector<float> logits = random_logits(kShapes[1], 100, kVocabulary, random);
  std::vector<Adjusted> sequences = random_sequences(kVocabulary);
  sequences.resize(3);
  sequences[0].row = 4;
  sequences[1].row = 50;
  sequences[2].row = 99;
  expect_engines("three rows", logits, kVocabulary, sequences);
  expect_engines("three rows", logits, kVocabulary, sequences, 1000);
  expect_engines("no rows", logits, kVocabulary, {});
}

// They are the model's fault wherever they stand, also where the token is forbidden.
TEST_F(AdjustLogits, ANanOrAnInfinityStays) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const int32_t at : {0, 3, 6}) {
      std::vector<float> logits = random_logits(kShapes[1], 2, 7, random);
      logits[static_cast<size_t>(7 + at)] = bad;
      std::vector<Adjusted> sequences(2);
      for (int32_t row = 0; row < 2; ++row) {
        Adjusted& one = sequences[static_cast<size_t>(row)];
        one.row = row;
        one.tokens = {3, 6};
        one.params.repetition_penalty = 1.5f;
        one.params.presence_penalty = 0.5f;
        one.params.logit_bias = {{.token = 3, .bias = -kInfinity}, {.token = 6, .bias = 1.0f}};
      }
      expect_engines("a NaN or an infinity", logits, 7, sequences);
    }
  }
}

}  // namespace
}  // namespace sparsellm
