#include <vector>

#include "tests/kernels/adjust_logits_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_F(AdjustLogits, ManySequences) {
  for (const int64_t vocabulary : {5, 700}) {
    const std::vector<Adjusted> sequences = random_sequences(vocabulary);
    expect_engines("normal", random_logits(kShapes[1], std::ssize(sequences), vocabulary, random),
                   vocabulary, sequences);
  }
}

// Several adjustments for each thread of a row.
TEST_F(AdjustLogits, ALongList) {
  constexpr int64_t kVocabulary = 4000;
  Adjusted sequence;
  sequence.tokens = random_tokens(3000, kVocabulary);
  sequence.prompt_length = 1000;
  sequence.params.repetition_penalty = 1.5f;
  sequence.params.frequency_penalty = 0.25f;
  expect_engines("a long list", random_logits(kShapes[1], 1, kVocabulary, random), kVocabulary,
                 {&sequence, 1});
}

}  // namespace
}  // namespace sparsellm
