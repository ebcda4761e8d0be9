#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/log_probs_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_F(LogProbsOfRows, SomeRowsInAnyOrder) {
  constexpr int32_t kVocabulary = 333;
  constexpr int32_t kFirst = 128;
  const std::vector<int32_t> tokens{332, 0, 50};
  for (const Shape& shape : kShapes) {
    const std::vector<float> logits = random_logits(shape, 7, kVocabulary, random);
    const std::vector<LogProbRow> rows{{.row = kFirst + 5, .token = 4, .top = 20},
                                       {.row = kFirst + 0, .token = -1, .top = 0},
                                       {.row = kFirst + 6, .token = -3, .top = 3},
                                       {.row = kFirst + 6, .token = -2, .top = 1}};
    expect_naive(shape.name, logits, kVocabulary, rows, tokens, kFirst);
  }
  EXPECT_TRUE(on_gpu(random_logits(kShapes[0], 1, 9, random), 9, {}).empty());
}

TEST_F(LogProbsOfRows, RowsWithANanOrAnInfinityAreSaidToBeSo) {
  for (const int64_t vocabulary : {1, 2, 7, 1000, 4099}) {
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (const int64_t at : {int64_t{0}, vocabulary / 2, vocabulary - 1}) {
        std::vector<float> logits = random_logits(kShapes[1], 3, vocabulary, random);
        logits[static_cast<size_t>(vocabulary + at)] = bad;
        const std::vector<LogProbRow> rows{{.row = 0, .token = 0, .top = 2},
                                           {.row = 1, .token = 0, .top = 2},
                                           {.row = 2, .token = 0, .top = 0}};
        const std::vector<LogProbs> told = on_gpu(logits, vocabulary, rows);
        EXPECT_EQ(told[0].finite, 1);
        EXPECT_EQ(told[1].finite, 0) << "vocabulary " << vocabulary << ", " << bad << " at " << at;
        EXPECT_EQ(told[1].token, 0);
        EXPECT_EQ(told[2].finite, 1);
      }
    }
  }
}

// As after sample(), which may have chosen none.
TEST_F(LogProbsOfRows, OfNoToken) {
  const std::vector<float> logits = random_logits(kShapes[1], 1, 50, random);
  for (const int32_t token : {-1, 50, std::numeric_limits<int32_t>::min()}) {
    const LogProbRow row{.row = 0, .token = -1, .top = 1};
    const LogProbs told = on_gpu(logits, 50, {&row, 1}, {&token, 1}).front();
    EXPECT_EQ(told.finite, 1);
    EXPECT_EQ(told.token, token);
    EXPECT_TRUE(std::isnan(told.log_prob));
  }
}

}  // namespace
}  // namespace sparsellm
