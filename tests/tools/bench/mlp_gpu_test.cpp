// sparsellm-bench mlp on a GPU: all parts of small MLPs are right, timed and compared.

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/device_info.h"
#include "tests/testing/gpu_context.h"
#include "tools/bench/mlp.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int kFusedCapability = 90;

class BenchMlp : public GpuTest {
 protected:
  static MlpBenchOptions small_options() {
    MlpBenchOptions options;
    options.dtype = GetParam();
    options.repeat = 3;
    options.rotation_bytes = 1 << 20;
    options.device = kGpu;
    return options;
  }
  static std::vector<MlpResult> silent_run(const MlpBenchOptions& options) {
    return bench_mlps(options, [](const MlpResult&) {});
  }
  static std::string name(const MlpResult& result) {
    return fmt::format("{} of {}, {} tokens, {} votes: {}", name_of(result.part),
                       to_string(result.shape), result.tokens,
                       static_cast<int>(result.prediction.votes), result.note);
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, BenchMlp, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(BenchMlp, EveryPartIsVerified) {
  const bool fuses = query_gpu(0).compute_capability == kFusedCapability;
  MlpBenchOptions options = small_options();
  options.shapes = {{.neurons = 1408, .hidden = 512},
                    {.neurons = 1031, .hidden = 256, .gated = false}};
  options.tokens = {1, 3, 9};
  for (const Votes votes : {Votes::sign, Votes::weighted}) {
    options.votes = votes;
    const std::vector<MlpResult> results = silent_run(options);
    EXPECT_EQ(results.size(), 2 * kMlpParts.size() * 3);
    for (const MlpResult& result : results) {
      SCOPED_TRACE(name(result));
      if (result.part == MlpPart::fused && !fuses) {
        EXPECT_FALSE(result.verified);
        EXPECT_NE(result.note.find("no kernel"), std::string::npos);
        continue;
      }
      EXPECT_TRUE(result.verified);
      EXPECT_LE(result.worst_error, 1.0);
      EXPECT_GT(result.us.median, 0.0);
      ASSERT_TRUE(result.overlapped_us);
      EXPECT_GT(result.overlapped_us->median, 0.0);
      EXPECT_EQ(result.compared.verdict.has_value(), is_whole(result.part));
      EXPECT_EQ(result.overlapped_compared.verdict.has_value(), is_whole(result.part));
      EXPECT_GT(result.fraction_of_read_ceiling, 0.0);
      EXPECT_NEAR(result.shares.predicted, 0.9, 0.04);
      EXPECT_NEAR(result.shares.zeros, 0.9, 0.04);
    }
  }
}

TEST_P(BenchMlp, NoneAndAllAreActive) {
  for (const double share : {0.0, 1.0}) {
    MlpBenchOptions options = small_options();
    options.shapes = {{.neurons = 640, .hidden = 384}};
    options.tokens = {1, 8};
    options.shares.predicted = share;
    options.shares.zeros = share;
    for (const MlpResult& result : silent_run(options)) {
      SCOPED_TRACE(name(result));
      EXPECT_TRUE(result.verified || result.part == MlpPart::fused);
      EXPECT_EQ(result.shares.zeros, share);
    }
  }
}

// Also with shapes of no whole blocks, ranges or vectors.
TEST_P(BenchMlp, EveryVariantOfTheAblationIsVerified) {
  MlpBenchOptions options = small_options();
  options.ablation = true;
  options.shapes = {{.neurons = 1408, .hidden = 512}, {.neurons = 331, .hidden = 70}};
  options.tokens = {1};
  options.votes = Votes::sign;
  options.shares = {.predicted = 0.8, .zeros = 0.9};
  const std::vector<MlpResult> results = silent_run(options);
  constexpr size_t kSubjects = 3 + kMlpAblations.size();  // dense, ops, fused
  ASSERT_EQ(results.size(), 2 * kAblationAlphas.size() * kSubjects);
  for (size_t i = 0; i < results.size(); ++i) {
    const MlpResult& result = results[i];
    SCOPED_TRACE(fmt::format("{}, alpha {}: {}", result.subject().name(), result.prediction.alpha,
                             name(result)));
    EXPECT_EQ(result.alpha_factor, kAblationAlphas[i / kSubjects % kAblationAlphas.size()]);
    if (result.part == MlpPart::fused) {
      continue;
    }
    EXPECT_TRUE(result.verified);
    EXPECT_LE(result.worst_error, 1.0);
    EXPECT_GT(result.us.median, 0.0);
    EXPECT_EQ(result.compared.verdict.has_value(), is_whole(result.part));
    EXPECT_NEAR(result.shares.zeros, 0.9, 0.05);
    if (result.alpha_factor == kAblationAlphas.front()) {
      EXPECT_NEAR(result.shares.predicted, 0.8, 0.1);
    } else {
      EXPECT_LE(result.shares.predicted, results[i - kSubjects].shares.predicted);
    }
  }
}

TEST_P(BenchMlp, NoneAndAllAreActiveInTheAblation) {
  for (const double share : {0.0, 1.0}) {
    MlpBenchOptions options = small_options();
    options.ablation = true;
    options.shapes = {{.neurons = 640, .hidden = 384}};
    options.tokens = {1};
    options.shares = {.predicted = share, .zeros = share};
    for (const MlpResult& result : silent_run(options)) {
      SCOPED_TRACE(fmt::format("{}, {}", result.subject().name(), name(result)));
      EXPECT_TRUE(result.verified || result.part == MlpPart::fused);
    }
  }
}

// The ops take any shape.
TEST_P(BenchMlp, AShapeThatIsNotFused) {
  MlpBenchOptions options = small_options();
  options.shapes = {{.neurons = 331, .hidden = 70}};
  options.tokens = {2};
  for (const MlpResult& result : silent_run(options)) {
    SCOPED_TRACE(name(result));
    EXPECT_EQ(result.verified, result.part != MlpPart::fused);
  }
}

}  // namespace
}  // namespace sparsellm
