#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/attention_prefill_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionPrefill, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Whatever is not finite reaches the rows that see it, in the heads and elements that it belongs
// to, and changes no other bit.
TEST_P(AttentionPrefill, NanStaysWhereItIsSeen) {
  constexpr int64_t kTokens = 140;
  constexpr int64_t kHeads = 4;
  constexpr int64_t kHeadDim = 24;
  constexpr int64_t kFeatures = kHeads * kHeadDim;
  enum class Place { q, k, v };
  Cache cache(30, 2, kHeadDim, random);
  const Pages sick = cache.add(kTokens);
  const Pages healthy = cache.add(20);
  const std::vector<StepRequest> requests{request(sick, kTokens, kTokens), request(healthy, 20, 3)};
  constexpr int64_t kRows = kTokens + 3;
  std::vector<double> q;
  for (int64_t i = 0; i < kRows * kFeatures; ++i) {
    q.push_back(random.uniform(-1.0, 1.0));
  }
  struct Case {
    Place place;
    double value;
  };
  for (const int64_t window : {0, 40, 70}) {
    const AttentionParams params{.scale = 0.2f, .window = window};
    const std::vector<double> clean =
        values_of(attend(cache, requests, kRows, kFeatures, q, params).view());
    for (const Case& each : {Case{Place::q, kNan}, Case{Place::k, kNan}, Case{Place::v, kNan},
                             Case{Place::v, std::numeric_limits<double>::infinity()}}) {
      for (int64_t token : {0, 18, 63, 64, 100, 139}) {
        constexpr int64_t kHead = 1;  // as a head of keys and values: that of queries 2 and 3
        constexpr int64_t kElement = 13;
        std::vector<double> queries = q;
        Cache changed = cache;
        if (each.place == Place::q) {
          queries.at(static_cast<size_t>(token * kFeatures + kHead * kHeadDim + kElement)) =
              each.value;
        } else {
          Pool& pool = each.place == Place::k ? changed.k : changed.v;
          pool.at(sick, token, kHead, kElement) = each.value;
        }
        const std::vector<double> got =
            values_of(attend(changed, requests, kRows, kFeatures, queries, params).view());
        int64_t failures = 0;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t i = 0; i < kFeatures; ++i) {
            const bool seen = row >= token && row < kTokens &&
                              (window == 0 || row < token + window) && i / kHeadDim >= 2;
            const bool hit = each.place == Place::q   ? row == token && i / kHeadDim == kHead
                             : each.place == Place::k ? seen
                                                      : seen && i % kHeadDim == kElement;
            const auto at = static_cast<size_t>(row * kFeatures + i);
            const double expected = hit ? each.value : clean[at];
            failures +=
                got[at] == expected || (std::isnan(got[at]) && std::isnan(expected)) ? 0 : 1;
          }
        }
        EXPECT_EQ(failures, 0) << "place " << static_cast<int>(each.place) << ", value "
                               << each.value << ", token " << token << ", window " << window;
      }
    }
    for (double value : clean) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// Scores near +-20,000 that are whole numbers, so that their differences are exact.
TEST_P(AttentionPrefill, LargeScores) {
  constexpr int64_t kTokens = 140;
  for (double offset : {0.0, -20000.0, 20000.0}) {
    Cache cache(10, 1, 64, random);
    const Pages pages = cache.add(kTokens);
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t i = 0; i < 64; ++i) {
        cache.k.at(pages, token, 0, i) = 0.0;
      }
      cache.k.at(pages, token, 0, 0) = offset;
      cache.k.at(pages, token, 0, 63) = static_cast<double>(random.below(9)) - 4.0;
    }
    const std::vector<StepRequest> requests{request(pages, kTokens, kTokens)};
    const std::vector<double> q(kTokens * 64, 1.0);
    const GuardedTensor y = attend(cache, requests, kTokens, 64, q, {.scale = 1.0f});
    const GuardedTensor k = cache.k.upload(GetParam());
    const GuardedTensor v = cache.v.upload(GetParam());
    expect_twin(y, on_gpu(kTokens, 64, q).view(), {.k = k.view(), .v = v.view()}, requests,
                {.scale = 1.0f});
  }
}

TEST_P(AttentionPrefill, OneScoreFarAboveTheOthersPicksItsValue) {
  const double most = GetParam() == DType::f16 ? 3e4 : 1e15;
  for (int64_t winner : {0, 15, 16, 63, 64, 129}) {
    Cache cache(10, 1, 64, random);
    const Pages pages = cache.add(130);
    std::vector<double> q;
    for (int64_t i = 0; i < 64; ++i) {
      cache.k.at(pages, winner, 0, i) = most;
      q.push_back(random.uniform(1.0, most));
    }
    const GuardedTensor v = cache.v.upload(GetParam());
    const GuardedTensor y = attend(cache, {request(pages, 130, 1)}, 1, 64, q, {.scale = 1.0f});
    const Tensor page = v.view().rows(pages[static_cast<size_t>(winner / kPageSize)], 1);
    const std::vector<double> values = values_of(page);
    const auto first = values.begin() + winner % kPageSize * 64;
    EXPECT_TRUE(
        all_close(y.view(), std::vector<double>(first, first + 64), std::vector<double>(64, 1e-30)))
        << winner;
  }
}

}  // namespace
}  // namespace sparsellm
