// Rows that count as generated, on a GPU.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/device_tables.h"
#include "tests/engine/engine_gpu_fixture.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm {
namespace {

using testing::GpuEngine;
using testing::on_gpu;

TEST(DeviceTables, SayWhichRowsAreGenerated) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  // The first two rows of `both` come after a prompt.
  const StepTables both{.token_ids = {4, 5, 1, 2, 3},
                        .positions = {3, 4, 0, 1, 2},
                        .query_start = {0, 2, 5},
                        .kv_length = {5, 3},
                        .page_table = {0, 1},
                        .page_stride = 1,
                        .logit_rows = {},
                        .generated = 2};
  const StepTables prompt{.token_ids = {1, 2, 3},
                          .positions = {0, 1, 2},
                          .query_start = {0, 3},
                          .kv_length = {3},
                          .page_table = {0},
                          .page_stride = 1,
                          .logit_rows = {}};
  testing::GpuContext gpu;
  DeviceTables tables(testing::kGpu, 8, 8, 2);
  EXPECT_EQ(tables.send(both, {}, 0, gpu.cuda).inputs.batch.generated, 2);
  EXPECT_EQ(tables.send(prompt, {}, 1, gpu.cuda).inputs.batch.generated, 0);
  gpu.cuda.synchronize();
  for (int64_t rows : {1, 8}) {
    EXPECT_TRUE(tables.decode_views(rows).inputs.batch.decode);
    EXPECT_EQ(tables.decode_views(rows).inputs.batch.generated, rows);
  }
}

struct Scores {
  std::map<int64_t, std::vector<float>> logits;  // by position
  std::vector<float> log_probs;                  // of the prompt
  std::vector<int32_t> tokens;
};

// Of a text and a continuation, from each of these on as if it had been generated; together.
std::vector<Scores> scores_of(Engine& engine, const std::vector<int32_t>& text, int64_t max_tokens,
                              const std::vector<std::optional<int64_t>>& decode_from) {
  std::vector<Scores> all(decode_from.size());
  std::vector<Request> requests(decode_from.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i] = {.prompt = text,
                   .sampling = {.temperature = 0.0f},
                   .max_tokens = max_tokens,
                   .ignore_eos = true,
                   .log_probs = 0,
                   .prompt_log_probs = true,
                   .score_prompt = true,
                   .decode_from = decode_from[i]};
    requests[i].on_logits = [&scores = all[i]](int64_t position, std::span<const float> logits) {
      EXPECT_TRUE(scores.logits.try_emplace(position, logits.begin(), logits.end()).second);
    };
  }
  const std::vector<Completion> done = engine.generate(std::move(requests));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(done[i].error, "");
    for (const TokenLogProbs& of_prompt : done[i].prompt_log_probs) {
      all[i].log_probs.push_back(of_prompt.token.log_prob);
    }
    all[i].tokens = done[i].tokens;
  }
  return all;
}

std::vector<int32_t> some_text(const Engine& engine) {
  std::mt19937 random(11);
  std::vector<int32_t> text(75);
  for (int32_t& id : text) {
    id = static_cast<int32_t>(random() % static_cast<unsigned>(engine.config().vocab_size));
  }
  return text;
}

// A prompt in one go, and from several places on in decode steps with padding; also where the KV
// cache has no room for all.
TEST_P(GpuEngine, DecodeFromHasTheBitsOfAPromptWhenDeterministic) {
  for (int64_t kv_tokens : {0, 176}) {
    EngineOptions options = on_gpu();
    options.deterministic = true;
    options.context_size = 96;
    options.kv_tokens = kv_tokens;
    Engine engine = Engine::load(GetParam(), options);
    const std::vector<Scores> all =
        scores_of(engine, some_text(engine), 20, {{}, 1, 16, 17, 40, 74, 75});
    // With a window of half a page a sequence gives one back for each that it takes.
    EXPECT_EQ(engine.stats().preemptions > 0, kv_tokens > 0 && engine.config().window == 0);
    EXPECT_EQ(all.front().logits.size(), 94u);
    EXPECT_EQ(all.front().log_probs.size(), 74u);
    for (const Scores& scores : all) {
      EXPECT_TRUE(scores.logits == all.front().logits);
      EXPECT_TRUE(scores.log_probs == all.front().log_probs);
      EXPECT_EQ(scores.tokens, all.front().tokens);
    }
  }
}

TEST_P(GpuEngine, DecodeFromHasTheLogitsOfAPrompt) {
  EngineOptions options = on_gpu();
  options.dtype = DType::f16;
  Engine engine = Engine::load(GetParam(), options);
  // FATReLU jumps at its threshold, of which a value is on the other side with other roundings.
  const bool jumps = engine.config().activation.kind == Activation::Kind::fatrelu;
  const double tolerance = jumps ? 0.5 : 0.04;
  const int64_t decoded = engine.stats().decode_tokens;
  const std::vector<Scores> all = scores_of(engine, some_text(engine), 4, {{}, 1, 30});
  EXPECT_EQ(engine.stats().decode_tokens - decoded, 74 + 45 + 3 * 3);
  for (const Scores& scores : all) {
    ASSERT_EQ(scores.log_probs.size(), 74u);
    double worst = 0.0;
    for (int64_t position = 0; position < 75; ++position) {
      const std::vector<float>& got = scores.logits.at(position);
      const std::vector<float>& expected = all.front().logits.at(position);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(std::isfinite(got[i]));
        worst = std::max(worst, std::abs(double{got[i]} - double{expected[i]}));
      }
    }
    EXPECT_LE(worst, tolerance);
  }
}

}  // namespace
}  // namespace sparsellm
