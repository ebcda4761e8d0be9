#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/attention_prefill_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionPrefill, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AttentionPrefill, ALongPrompt) {
  constexpr int64_t kTokens = 2000;
  Cache cache(150, 1, 128, random);
  const std::vector<StepRequest> requests{request(cache.add(kTokens), kTokens, kTokens)};
  const GuardedTensor k = cache.k.upload(GetParam());
  const GuardedTensor v = cache.v.upload(GetParam());
  const KvLayer kv{.k = k.view(), .v = v.view()};
  const PagedStep step(requests, kGpu);
  const GuardedTensor q =
      random.tensor(GetParam(), {kTokens, 256}, Layout::contiguous, -3.0, 3.0, kGpu);
  const GuardedTensor y(GetParam(), {kTokens, 256}, Layout::contiguous, kGpu);
  for (int64_t window : {0, 700}) {
    const AttentionParams params{.scale = scale_of(128), .window = window};
    attention(q.view(), kv, step.batch(), params, y.view(), gpu->exec);
    expect_twin(y, q.view(), kv, requests, params);
  }
}

// So many rows that other tiles pay: the same bits, infinities and NaNs included.
TEST_P(AttentionPrefill, ALargeLaunchHasTheSameBits) {
  constexpr int64_t kTokens = 130;
  constexpr int64_t kCopies = 24;
  for (int64_t head_dim : {64, 80, 128}) {
    SCOPED_TRACE(fmt::format("heads of {}", head_dim));
    const int64_t features = 8 * head_dim;
    Cache cache(20, 4, head_dim, random);
    const Pages pages = cache.add(kTokens);
    cache.k.at(pages, 120, 0, 1) = kNan;
    cache.v.at(pages, 50, 1, 3) = kNan;
    cache.v.at(pages, 77, 2, 7) = std::numeric_limits<double>::infinity();
    cache.v.at(pages, 5, 3, 5) = -std::numeric_limits<double>::infinity();
    std::vector<double> q;
    for (int64_t i = 0; i < kTokens * features; ++i) {
      q.push_back(random.uniform(-3.0, 3.0));
    }
    std::vector<StepRequest> requests;
    std::vector<double> queries;
    for (int64_t i = 0; i < kCopies; ++i) {
      requests.push_back(request(pages, kTokens, kTokens));
      queries.insert(queries.end(), q.begin(), q.end());
    }
    for (int64_t window : {0, 1, 37, 70, 100}) {
      const AttentionParams params{.scale = scale_of(head_dim), .window = window};
      const GuardedTensor one =
          attend(cache, {request(pages, kTokens, kTokens)}, kTokens, features, q, params);
      const GuardedTensor many =
          attend(cache, requests, kCopies * kTokens, features, queries, params);
      for (int64_t i = 0; i < kCopies; ++i) {
        EXPECT_TRUE(same_bits(many.view().rows(i * kTokens, kTokens), one.view()))
            << "copy " << i << ", window " << window;
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
