#include <limits>
#include <vector>

#include "tests/kernels/sample_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_F(Sample, ManyTopKs) {
  constexpr int32_t kVocabulary = 5000;
  for (const Shape& shape : kShapes) {
    std::vector<SampleRow> rows;
    for (int32_t top_k : {3, 31, 300, 1023, 1024, 1025, 2500, 4998, 4999, 5000}) {
      for (float top_p : {1.0f, 0.8f}) {
        rows.push_back({.slot = static_cast<int32_t>(rows.size()),
                        .temperature = 1.5f,
                        .top_k = top_k,
                        .top_p = top_p,
                        .use_banned = top_p < 1.0f ? 1 : 0,
                        .seed = 5,
                        .index = top_k});
      }
    }
    const std::vector<float> logits = random_logits(shape, std::ssize(rows), kVocabulary, random);
    expect_engines(shape.name, logits, rows, std::vector<int32_t>{4999, 17, 0});
  }
}

TEST_F(Sample, RowsWithANanOrAnInfinity) {
  for (int64_t vocabulary : {1, 2, 7, 1000, 4099}) {
    for (float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (int64_t at : {int64_t{0}, vocabulary / 2, vocabulary - 1}) {
        for (float temperature : {0.0f, 1.0f}) {
          std::vector<SampleRow> rows;
          for (int32_t slot = 0; slot < 5; ++slot) {
            rows.push_back({.slot = slot, .temperature = temperature, .use_banned = 1});
          }
          std::vector<float> logits =
              random_logits(kShapes[1], std::ssize(rows), vocabulary, random);
          logits[static_cast<size_t>(3 * vocabulary + at)] = bad;
          const std::vector<int32_t> banned{static_cast<int32_t>(vocabulary / 2)};
          const std::vector<int32_t> got = sample_on_gpu(logits, rows, banned, 5);
          EXPECT_EQ(got[3], kNoToken) << "vocabulary " << vocabulary << ", " << bad << " at " << at;
          expect_engines("a NaN or an infinity", logits, rows, banned);
        }
      }
    }
  }
}

TEST_F(Sample, SlotsInAnyOrderAndRowsPassedOver) {
  constexpr int32_t kRows = 300;
  constexpr int64_t kVocabulary = 333;
  constexpr int64_t kSlots = 400;
  const std::vector<float> logits = random_logits(kShapes[1], kRows, kVocabulary, random);
  const std::vector<int32_t> slots = random.permutation(kSlots);
  std::vector<SampleRow> rows;
  std::vector<int32_t> expected(kSlots, kUntouched);
  for (int32_t i = 0; i < kRows; ++i) {
    const auto row = static_cast<size_t>(i);
    rows.push_back({.slot = i % 3 == 1 ? -1 : slots[row],
                    .temperature = static_cast<float>(i % 4),
                    .seed = 3,
                    .index = i});
    if (rows[row].slot >= 0) {
      expected[static_cast<size_t>(rows[row].slot)] = token_of_the_engine(
          std::span(logits).subspan(row * kVocabulary, kVocabulary), rows[row], {});
    }
  }
  const std::vector<int32_t> got = sample_on_gpu(logits, rows, {}, kSlots);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(sample_on_gpu(logits, rows, {}, kSlots), got);
}

}  // namespace
}  // namespace sparsellm
