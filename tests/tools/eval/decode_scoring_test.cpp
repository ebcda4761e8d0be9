// Windows scored row by row (ScoredRows::decode) have the figures of windows scored as prompts, to
// the last bit: on the CPU a token's logits do not depend on the rows of the step.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/throws_error.h"
#include "tools/eval/compare.h"
#include "tools/eval/perplexity.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kContext = 40;

std::string beginning(size_t bytes) {
  std::ifstream file(testing::data("text/peter_pan.txt"), std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  return text;
}

struct Limits {
  int64_t max_requests = 32;
  int64_t step_tokens = 2048;
  int64_t kv_tokens = 0;
  int steps_ahead = 0;
  std::optional<DType> kv_dtype = {};
};

Engine load(const fs::path& directory, const Limits& limits) {
  EngineOptions options;
  options.context_size = kContext;
  options.threads = 2;
  options.max_requests = limits.max_requests;
  options.step_tokens = limits.step_tokens;
  options.kv_tokens = limits.kv_tokens;
  options.steps_ahead = limits.steps_ahead;
  options.kv_dtype = limits.kv_dtype;
  return Engine::load(directory, options);
}

TEST(DecodeScoring, PerplexityHasTheBitsOfPrompts) {
  const std::string text = beginning(1500);
  for (const char* name : {"opt_gelu", "llama3"}) {
    const fs::path model = testing::data("tiny") / name;
    for (const auto protocol : {PerplexityProtocol::windows, PerplexityProtocol::llama_cpp}) {
      SCOPED_TRACE(model);
      const auto measure = [&](Engine& engine, ScoredRows rows) {
        int64_t last_done = 0;
        int64_t total = 0;
        const Perplexity result = measure_perplexity(
            engine, text, kContext, protocol,
            [&](int64_t done, int64_t all) {
              EXPECT_GE(done, last_done);
              last_done = done;
              total = all;
            },
            rows);
        EXPECT_EQ(last_done, result.tokens);
        EXPECT_EQ(total, result.tokens);
        return result;
      };
      Engine prefilled = load(model, {.max_requests = 8});
      const Perplexity expected = measure(prefilled, ScoredRows::prefill);
      EXPECT_EQ(prefilled.stats().decode_tokens, 0);
      EXPECT_GT(expected.windows, 3);
      const int64_t scored = protocol == PerplexityProtocol::windows ? 39 : 19;
      EXPECT_EQ(expected.tokens, expected.windows * scored);
      // All windows together, three of them, and the two that a KV cache has room for.
      for (const Limits& limits : {Limits{.max_requests = kDecodedWindows},
                                   Limits{.max_requests = 3, .step_tokens = 5, .steps_ahead = 1},
                                   Limits{.max_requests = 5, .kv_tokens = 96}}) {
        Engine engine = load(model, limits);
        const Perplexity result = measure(engine, ScoredRows::decode);
        // The BOS of a window is its prompt.
        const EngineStats& stats = engine.stats();
        EXPECT_EQ(stats.prefill_tokens, expected.windows);
        EXPECT_EQ(stats.decode_tokens, expected.windows * (kContext - 1));
        EXPECT_EQ(result.windows, expected.windows);
        EXPECT_EQ(result.tokens, expected.tokens);
        EXPECT_EQ(result.perplexity, expected.perplexity);
        EXPECT_EQ(result.standard_error, expected.standard_error);
      }
    }
  }
}

void expect_same(const Estimate& a, const Estimate& b) {
  EXPECT_EQ(a.value, b.value);
  EXPECT_EQ(a.standard_error, b.standard_error);
}

TEST(DecodeScoring, ComparisonsHaveTheBitsOfPrompts) {
  const std::string text = beginning(4000);
  const fs::path model = testing::data("tiny/opt_gelu");
  const auto measure = [&](ScoredRows rows, const Limits& limits_b) {
    const ComparisonBatch batch = comparison_batch(4096, kContext, rows);
    Limits rounded = limits_b;
    rounded.kv_dtype = DType::f16;
    Engine a = load(model, {.max_requests = batch.windows, .step_tokens = batch.step_tokens});
    Engine b = load(model, rounded);
    Comparison result = compare_models({.name = "a", .engine = a}, {.name = "b", .engine = b}, text,
                                       {.context = kContext, .rows = rows, .threads = 2});
    const bool decodes = rows == ScoredRows::decode;
    for (const Engine* engine : {&a, &b}) {
      EXPECT_EQ(engine->stats().decode_tokens, decodes ? result.windows * (kContext - 1) : 0);
    }
    return result;
  };
  const Comparison expected = measure(ScoredRows::prefill, {});
  EXPECT_GT(expected.windows, kDecodedWindows);
  EXPECT_GT(expected.kl.value, 0.0);
  for (const Limits& limits_b : {Limits{}, Limits{.max_requests = 7, .step_tokens = 9}}) {
    const Comparison result = measure(ScoredRows::decode, limits_b);
    EXPECT_EQ(result.tokens, expected.tokens);
    EXPECT_EQ(result.windows, expected.windows);
    expect_same(result.kl, expected.kl);
    EXPECT_EQ(result.kl_median, expected.kl_median);
    EXPECT_EQ(result.kl_99, expected.kl_99);
    EXPECT_EQ(result.kl_999, expected.kl_999);
    EXPECT_EQ(result.kl_max, expected.kl_max);
    EXPECT_EQ(result.top1_agreement, expected.top1_agreement);
    EXPECT_EQ(result.top1_gap_max, expected.top1_gap_max);
    expect_same(result.perplexity_a, expected.perplexity_a);
    expect_same(result.perplexity_b, expected.perplexity_b);
    expect_same(result.perplexity_ratio, expected.perplexity_ratio);
    EXPECT_EQ(result.worst.position, expected.worst.position);
    EXPECT_EQ(result.worst.context, expected.worst.context);
    EXPECT_EQ(result.worst.kl, expected.worst.kl);
  }
}

TEST(DecodeScoring, BatchesFitTheirMemory) {
  struct Case {
    int64_t vocab_size;
    int64_t context;
    ComparisonBatch expected;
  };
  const std::vector<Case> cases{
      {4096, 512, {.step_tokens = 2048, .windows = 32}},
      {128256, 8192, {.step_tokens = 1046, .windows = 32}},
      {int64_t{1} << 23, 512, {.step_tokens = 16, .windows = 16}},
      {int64_t{1} << 31, 4, {.step_tokens = 1, .windows = 1}},
  };
  for (const Case& c : cases) {
    const ComparisonBatch batch = comparison_batch(c.vocab_size, c.context, ScoredRows::decode);
    EXPECT_EQ(batch.step_tokens, c.expected.step_tokens);
    EXPECT_EQ(batch.windows, c.expected.windows);
  }
}

TEST(DecodeScoring, HasTheSameErrors) {
  Engine engine = load(testing::data("tiny/opt_gelu"), {});
  const auto measure = [&](const std::string& text) {
    measure_perplexity(
        engine, text, kContext, PerplexityProtocol::windows, [](int64_t, int64_t) {},
        ScoredRows::decode);
  };
  EXPECT_TRUE(testing::throws_error([&] { measure("A king."); }, "less than one window"));
}

}  // namespace
}  // namespace sparsellm
