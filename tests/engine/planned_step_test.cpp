// A plan as ranks compute it, on both kinds of devices.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/step_tables.h"

namespace sparsellm {
namespace {

using Ints = std::vector<int32_t>;

std::unique_ptr<Sequence> sequence_of(Request request, int64_t prompt, int64_t known) {
  request.prompt.resize(static_cast<size_t>(prompt));
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens.resize(static_cast<size_t>(known));
  std::iota(sequence->tokens.begin(), sequence->tokens.end(), 100);
  sequence->max_length = known + 10;
  sequence->seed = 77;
  sequence->pages = {static_cast<int32_t>(prompt)};
  sequence->submission = std::make_shared<const Submission>(
      Submission{.id = 1, .request = std::move(request), .on_token = {}});
  return sequence;
}

// Three decode rows, of which the host looks at the second and does not know the third's token, and
// two prompts, of which it looks at the first.
class PlannedSteps : public ::testing::Test {
 protected:
  PlannedSteps() {
    const Request sampled{
        .prompt = {},
        .sampling = {.temperature = 0.5f, .top_k = 9, .top_p = 0.8f, .min_p = 0.1f},
        .ignore_eos = true};
    add(sampled, 3, 5, {.first = 4, .count = 1, .token_from = {}, .choice = 0, .decode = true});
    add({.prompt = {}, .log_probs = 0}, 4, 5,
        {.first = 4, .count = 1, .token_from = {}, .choice = 1, .decode = true});
    add({}, 2, 2, {.first = 2, .count = 1, .token_from = 3, .choice = 2, .decode = true});
    add({.prompt = {}, .log_probs = 0, .prompt_log_probs = true}, 3, 3,
        {.first = 0, .count = 3, .token_from = {}, .choice = 3});
    add({}, 9, 9, {.first = 7, .count = 2, .token_from = {}, .choice = 4});
    plan_.choices = 5;
  }

  void add(const Request& request, int64_t prompt, int64_t known, Scheduler::Chunk chunk) {
    sequences_.push_back(sequence_of(request, prompt, known));
    chunk.sequence = sequences_.back().get();
    plan_.chunks.push_back(chunk);
  }

  // Of the rows that the host looks at.
  static std::vector<std::optional<int64_t>> choices(const PlannedStep& step) {
    std::vector<std::optional<int64_t>> choices;
    for (const LogitRow& row : step.host_rows()) {
      choices.push_back(row.choice);
    }
    return choices;
  }
  static Ints slots(const RankStep::Part& part) {
    Ints slots;
    for (const SampleRow& row : part.samples) {
      slots.push_back(row.slot);
    }
    return slots;
  }

  std::vector<std::unique_ptr<Sequence>> sequences_;
  Scheduler::Plan plan_;
};

using Choices = std::vector<std::optional<int64_t>>;

TEST_F(PlannedSteps, OnADeviceThatSamples) {
  PlannedStep planned;
  for (int again = 0; again < 2; ++again) {
    const std::vector<Choice> before(4, Choice{.token = 55, .log_probs = {}, .error = {}});
    planned.set(plan_, before, SampledOn::device);
    const RankStep& step = planned.step();
    EXPECT_EQ(step.choices, 5);
    EXPECT_EQ(step.decode.tables.token_ids, (Ints{104, 104, -4, 0}));  // the device knows the third
    EXPECT_EQ(step.decode.tables.positions, (Ints{4, 4, 2, -1}));
    EXPECT_TRUE(step.decode.tables.has_unknown_ids);
    EXPECT_EQ(slots(step.decode), (Ints{0, -1, 2, -1}));
    EXPECT_EQ(step.decode.samples[0], (SampleRow{.slot = 0,
                                                 .temperature = 0.5f,
                                                 .top_k = 9,
                                                 .top_p = 0.8f,
                                                 .min_p = 0.1f,
                                                 .use_banned = 1,
                                                 .seed = 77,
                                                 .index = 5}));
    EXPECT_EQ(step.decode.host_rows, Ints{1});
    EXPECT_EQ(step.prefill.tables.token_ids, (Ints{100, 101, 102, 107, 108}));
    EXPECT_EQ(step.prefill.tables.logit_rows, (Ints{0, 1, 2, 4}));
    EXPECT_EQ(slots(step.prefill), (Ints{-1, -1, -1, 4}));
    EXPECT_EQ(step.prefill.host_rows, (Ints{0, 1, 2}));
    EXPECT_EQ(choices(planned), (Choices{1, std::nullopt, std::nullopt, 3}));
  }
}

TEST_F(PlannedSteps, WhereTheHostSamples) {
  PlannedStep planned;
  std::vector<Choice> before(4);
  before[3].token = 55;
  planned.set(plan_, before, SampledOn::host);
  const RankStep& step = planned.step();
  EXPECT_EQ(step.choices, 5);
  EXPECT_EQ(step.decode.tables.rows(), 0);
  EXPECT_EQ(step.prefill.tables.token_ids, (Ints{104, 104, 55, 100, 101, 102, 107, 108}));
  EXPECT_FALSE(step.prefill.tables.has_unknown_ids);
  EXPECT_EQ(step.prefill.tables.logit_rows, (Ints{0, 1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(step.prefill.host_rows, (Ints{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(slots(step.prefill), Ints(7, -1));
  EXPECT_EQ(choices(planned), (Choices{0, 1, 2, std::nullopt, std::nullopt, 3, 4}));
}

TEST_F(PlannedSteps, PartsWithoutRows) {
  PlannedStep planned;
  planned.set(plan_, {}, SampledOn::device);
  Scheduler::Plan prompts = plan_;
  prompts.chunks.erase(prompts.chunks.begin(), prompts.chunks.begin() + 3);
  planned.set(prompts, {}, SampledOn::device);
  EXPECT_EQ(planned.step().decode, [] {
    RankStep::Part none;
    none.clear();
    return none;
  }());
  EXPECT_EQ(planned.step().prefill.tables.rows(), 5);
  Scheduler::Plan decode = plan_;
  decode.chunks.resize(3);
  planned.set(decode, {}, SampledOn::device);
  EXPECT_EQ(planned.step().decode.tables.rows(), 4);
  EXPECT_EQ(planned.step().prefill.tables.rows(), 0);
  EXPECT_EQ(choices(planned), Choices{1});
}

}  // namespace
}  // namespace sparsellm
