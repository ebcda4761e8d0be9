// The benchmark of attention on small shapes, and one that does not fit.

#include <string>
#include <vector>

#include "tests/testing/gpu_context.h"
#include "tools/bench/attention.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class BenchAttentionGpu : public GpuTest {
 protected:
  static std::vector<AttentionResult> bench(const AttentionBenchOptions& options) {
    std::vector<AttentionResult> results;
    bench_attention(options, [&](const AttentionResult& r) { results.push_back(r); });
    return results;
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, BenchAttentionGpu, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(BenchAttentionGpu, EveryCombinationIsMeasuredAndRight) {
  for (const bool prefill : {false, true}) {
    const std::vector<AttentionResult> results = bench({.requests = {1, 9},
                                                        .contexts = {1, 700},
                                                        .heads = 16,
                                                        .kv_heads = 4,
                                                        .head_dim = 64,
                                                        .dtype = GetParam(),
                                                        .prefill = prefill,
                                                        .repeat = 3,
                                                        .device = kGpu,
                                                        .read_bandwidth = 1e12});
    ASSERT_EQ(results.size(), 4u);
    for (size_t i = 0; i < results.size(); ++i) {
      const AttentionResult& result = results[i];
      EXPECT_EQ(result.shape.requests, i < 2 ? 1 : 9);
      EXPECT_EQ(result.shape.context, i % 2 == 0 ? 1 : 700);
      EXPECT_TRUE(result.measured) << result.note;
      EXPECT_GT(result.us.min, 0.0);
      EXPECT_LE(result.worst_error, 1.0);
      EXPECT_EQ(result.tflops > 0.0, prefill);
      EXPECT_EQ(result.read_gb_per_s > 0.0, !prefill);
      EXPECT_EQ(result.fraction_of_bandwidth > 0.0, !prefill);
    }
    // One token is a kilobyte: as many copies as are made at most stay in any L2.
    EXPECT_NE(results[0].note.find("too few"), std::string::npos) << results[0].note;
    EXPECT_EQ(results[3].note, "");
    EXPECT_GT(results[3].worst_error, 0.0);
  }
}

TEST_P(BenchAttentionGpu, WhatDoesNotFitIsANote) {
  const std::vector<AttentionResult> results = bench({.requests = {1 << 16},
                                                      .contexts = {1 << 20, 64},
                                                      .heads = 8,
                                                      .kv_heads = 1,
                                                      .head_dim = 8,
                                                      .dtype = GetParam(),
                                                      .repeat = 1,
                                                      .device = kGpu});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_FALSE(results[0].measured);
  EXPECT_NE(results[0].note.find("out of memory"), std::string::npos) << results[0].note;
  EXPECT_TRUE(results[1].measured) << results[1].note;
}

}  // namespace
}  // namespace sparsellm
