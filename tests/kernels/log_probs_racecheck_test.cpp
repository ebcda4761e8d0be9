#include <vector>

#include "tests/kernels/log_probs_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_F(LogProbsOfRows, AllTops) {
  for (const int64_t vocabulary : {3, 1000, 5003}) {
    for (const Shape& shape : kShapes) {
      std::vector<LogProbRow> rows;
      for (const int32_t top : {0, 1, 7, 20}) {
        rows.push_back({.row = static_cast<int32_t>(rows.size()), .token = 2, .top = top});
      }
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), vocabulary, random);
      expect_naive(shape.name, logits, vocabulary, rows);
    }
  }
}

// So many candidates that the exact bound is searched for: all that 19 threads have are above what
// the next one has.
TEST_F(LogProbsOfRows, MoreCandidatesThanThereIsRoomFor) {
  constexpr int64_t kVocabulary = 65536;
  std::vector<float> logits(kVocabulary);
  for (size_t id = 0; id < logits.size(); ++id) {
    logits[id] = id / 4 % 1024 < 19 ? static_cast<float>(id % 501) : -1.0f;
  }
  const LogProbRow row{.row = 0, .token = 2, .top = 20};
  expect_naive("few threads", logits, kVocabulary, {&row, 1});
}

}  // namespace
}  // namespace sparsellm
