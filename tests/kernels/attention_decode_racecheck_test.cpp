#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/attention_decode_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionDecode, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Scores that are whole numbers of up to +-20,000: nothing overflows, and differences of scores
// are exact.
TEST_P(AttentionDecode, LargeScores) {
  for (double offset : {0.0, -20000.0, 20000.0}) {
    Pool pool(GetParam(), 1, 64, random);
    for (size_t i = 0; i < pool.k.size(); ++i) {
      if (!std::isnan(pool.k[i])) {
        pool.k[i] = i % 64 == 0    ? offset
                    : i % 64 == 63 ? static_cast<double>(random.below(9)) - 4.0
                                   : 0.0;
      }
    }
    pool.upload();
    for (int64_t kv_length : {1, 40, 700}) {
      const GuardedTensor q(GetParam(), {1, 64}, Layout::contiguous, kGpu);
      set_values(q.view(), std::vector<double>(64, 1.0));
      SCOPED_TRACE(fmt::format("offset {}, kv_length {}", offset, kv_length));
      expect_twin(pool, Pool::requests({kv_length}, random), q, {.scale = 1.0f});
    }
  }
}

TEST_P(AttentionDecode, OneScoreFarAboveTheOthersPicksItsValue) {
  constexpr int64_t kLength = 17 * kPageSize;
  StepRequest request{.pages = {}, .kv_length = kLength, .rows = 1};
  for (int32_t i = 0; i < pages_for(kLength); ++i) {
    request.pages.push_back(20 - i);
  }
  for (int64_t winner : {0, 15, 16, 40, 200, 271}) {
    Pool pool(GetParam(), 1, 64, random);
    const int64_t page = request.pages[static_cast<size_t>(winner / kPageSize)];
    pool.k[pool.index(page, 0, winner % kPageSize, 3)] = 1000.0;
    pool.upload();
    const GuardedTensor q(GetParam(), {1, 64}, Layout::contiguous, kGpu);
    set_values(q.view(), std::vector<double>(64, 2.0));
    const GuardedTensor y(GetParam(), {1, 64}, Layout::contiguous, kGpu);
    decode(q.view(), pool.gpu(), {request}, {.scale = 1.0f}, y.view());
    const std::vector<double> values = values_of(pool.gpu().v);
    const auto first = static_cast<std::ptrdiff_t>(pool.index(page, 0, winner % kPageSize, 0));
    const std::vector<double> expected(values.begin() + first, values.begin() + first + 64);
    EXPECT_TRUE(all_close(y.view(), expected, std::vector<double>(64, 0.0))) << winner;
  }
}

// Among few rows, which are split, and among many, which are not.
TEST_P(AttentionDecode, NanStaysInItsHeadAndItsRequest) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kDim = 32;
  for (size_t healthy : {1u, 400u}) {
    Pool pool(GetParam(), 2, kDim, random);
    // Row 0 has a NaN in the query of head 2; row 1 in the key of token 105, key/value head 1; row
    // 2 in element 7 of the value of token 70, key/value head 0.
    std::vector<StepRequest> requests = {
        {.pages = {0, 1, 2, 3, 4, 5, 6}, .kv_length = 112, .rows = 1},
        {.pages = {0, 1, 2, 3, 4, 5, 7}, .kv_length = 112, .rows = 1},
        {.pages = {0, 1, 2, 3, 8, 5, 6}, .kv_length = 112, .rows = 1}};
    requests.resize(3 + healthy, requests[0]);
    pool.k[pool.index(7, 1, 105 % kPageSize, 5)] = kNan;
    pool.v[pool.index(8, 0, 70 % kPageSize, 7)] = kNan;
    pool.upload();
    const auto rows = static_cast<int64_t>(requests.size());
    std::vector<double> queries;
    for (int64_t i = 0; i < rows * kHeads * kDim; ++i) {
      queries.push_back(i == 2 * kDim + 9 ? kNan : random.uniform(-3.0, 3.0));
    }
    const GuardedTensor q(GetParam(), {rows, kHeads * kDim}, Layout::contiguous, kGpu);
    set_values(q.view(), queries);
    const GuardedTensor y(GetParam(), {rows, kHeads * kDim}, Layout::contiguous, kGpu);
    decode(q.view(), pool.gpu(), requests, {.scale = 0.25f}, y.view());
    const std::vector<double> values = values_of(y.view());
    for (int64_t i = 0; i < rows * kHeads * kDim; ++i) {
      const int64_t row = i / (kHeads * kDim);
      const int64_t head = i / kDim % kHeads;
      const bool sick = (row == 0 && head == 2) || (row == 1 && head >= 2) ||
                        (row == 2 && head < 2 && i % kDim == 7);
      ASSERT_EQ(std::isnan(values[static_cast<size_t>(i)]), sick) << row << " " << i;
    }
  }
}

// Of 53 tokens and a window: a NaN before it is of no weight, one in it makes its element NaN. In
// the first, the last and other slots of pages; of one page the window may see neither the first
// slots nor the last.
TEST_P(AttentionDecode, NanIsSeenInTheWindowAlone) {
  constexpr int64_t kLength = 53;
  constexpr int64_t kDim = 32;
  const StepRequest request{.pages = {3, 1, 2, 0}, .kv_length = kLength, .rows = 1};
  const GuardedTensor q = random.tensor(GetParam(), {1, kDim}, Layout::contiguous, -3.0, 3.0, kGpu);
  const GuardedTensor y(GetParam(), {1, kDim}, Layout::contiguous, kGpu);
  for (const bool is_key : {true, false}) {
    for (int64_t token : {0, 15, 16, 31, 40, 48, 50, 52}) {
      Pool pool(GetParam(), 1, kDim, random);
      const int64_t page = request.pages[static_cast<size_t>(token / kPageSize)];
      (is_key ? pool.k : pool.v)[pool.index(page, 0, token % kPageSize, 7)] = kNan;
      pool.upload();
      for (int64_t window : {1, 3, 13, 37, 53}) {
        decode(q.view(), pool.gpu(), {request}, {.scale = 0.25f, .window = window}, y.view());
        const std::vector<double> values = values_of(y.view());
        for (int64_t i = 0; i < kDim; ++i) {
          const bool sick = token >= kLength - window && (is_key || i == 7);
          ASSERT_EQ(std::isnan(values[static_cast<size_t>(i)]), sick)
              << "token " << token << ", window " << window << ", " << i;
        }
      }
    }
  }
}

TEST_P(AttentionDecode, AKeyOfNanMakesAllOfItsHeadNan) {
  Pool pool(GetParam(), 1, 64, random);
  for (double& value : pool.k) {
    value = kNan;
  }
  pool.upload();
  const GuardedTensor q = random.tensor(GetParam(), {1, 64}, Layout::contiguous, -1.0, 1.0, kGpu);
  const GuardedTensor y(GetParam(), {1, 64}, Layout::contiguous, kGpu);
  set_values(y.view(), std::vector<double>(64, 0.0));
  decode(q.view(), pool.gpu(), {Pool::request(200, random)}, {.scale = 1.0f}, y.view());
  EXPECT_TRUE(all_close(y.view(), std::vector<double>(64, kNan), std::vector<double>(64, 0.0)));
}

}  // namespace
}  // namespace sparsellm
