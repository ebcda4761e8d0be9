#include <limits>
#include <string_view>
#include <vector>

#include "tests/kernels/sample_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Every combination of these, with other seeds and indices in each row.
std::vector<SampleRow> all_parameters(int32_t vocabulary, Random& random) {
  std::vector<SampleRow> rows;
  for (float temperature : {0.0f, 1e-3f, 0.7f, 1.0f, 2.0f, 100.0f}) {
    for (int32_t top_k : {0, 1, 2, 40, vocabulary + 5}) {
      for (float top_p : {1.0f, 0.999f, 0.9f, 0.5f, 1e-6f}) {
        for (float min_p : {0.0f, 0.05f, 1.0f}) {
          rows.push_back({.slot = static_cast<int32_t>(rows.size()),
                          .temperature = temperature,
                          .top_k = top_k,
                          .top_p = top_p,
                          .min_p = min_p,
                          .use_banned = static_cast<int32_t>(random.below(2)),
                          .seed = static_cast<uint64_t>(random.below(int64_t{1} << 62)),
                          .index = random.below(10000)});
        }
      }
    }
  }
  return rows;
}

TEST_F(Sample, AllParametersOnAllShapes) {
  for (int32_t vocabulary : {1, 2, 7, 100, 1000}) {
    const std::vector<int32_t> banned{vocabulary / 2, 3, 95};
    for (const Shape& shape : kShapes) {
      const std::vector<SampleRow> rows = all_parameters(vocabulary, random);
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), vocabulary, random);
      expect_engines(shape.name, logits, rows, banned);
    }
  }
}

TEST_F(Sample, LargeVocabularies) {
  for (int32_t vocabulary : {50272, 50273, 128256}) {
    const std::vector<int32_t> banned{2, 50271, 128001};
    const std::vector<SampleRow> choices = all_parameters(vocabulary, random);
    for (const Shape& shape : kShapes) {
      std::vector<SampleRow> rows;
      for (int32_t slot = 0; slot < 6; ++slot) {
        rows.push_back(choices[static_cast<size_t>(random.below(std::ssize(choices)))]);
        rows.back().slot = slot;
      }
      // What costs the most passes.
      rows[0].temperature = rows[1].temperature = rows[2].temperature = 1.0f;
      rows[0].top_k = rows[1].top_k = 0;
      rows[0].top_p = 1.0f;
      rows[1].top_p = rows[2].top_p = 0.95f;
      rows[2].top_k = 5000;
      rows[0].min_p = rows[1].min_p = rows[2].min_p = 0.0f;
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), vocabulary, random);
      expect_engines(shape.name, logits, rows, banned);
    }
  }
}

TEST_F(Sample, BannedIds) {
  constexpr int32_t kVocabulary = 40;
  std::vector<int32_t> all;
  for (int32_t id = 0; id < kVocabulary; ++id) {
    all.push_back(kVocabulary - 1 - id);
  }
  std::vector<int32_t> all_but_one = all;
  all_but_one.erase(all_but_one.begin() + 7);
  const std::vector<std::vector<int32_t>> lists{
      {},
      {0},
      {39},
      {5, 5, 5},
      {-1, 40, 41, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()},
      {-1, 12, 40, 13, 14},
      all,
      all_but_one};
  for (const std::vector<int32_t>& banned : lists) {
    for (const Shape& shape : kShapes) {
      const std::vector<SampleRow> rows = all_parameters(kVocabulary, random);
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), kVocabulary, random);
      expect_engines(shape.name, logits, rows, banned);
    }
  }
}

TEST(SampleOnCpu, IsTheEngines) {
  CpuContext cpu;
  const GuardedTensor logits(DType::f32, {1, 4});
  const GuardedTensor rows(DType::i32, {1, kSampleRowWords});
  const GuardedTensor tokens(DType::i32, {1});
  EXPECT_TRUE(throws_error(
      [&] { sample(logits.view(), rows.view(), Tensor(), tokens.view(), cpu.exec); }, "engine"));
}

}  // namespace
}  // namespace sparsellm
