// A plan as ranks compute it, on both kinds of devices.

#include <gtest/gtest.h>

#include <limits>
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
  std::iota(request.prompt.begin(), request.prompt.end(), 7);
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

// Three decode rows, of which the second's log-probabilities are wanted and the host does not know
// the third's token, and two prompts, of which the first's are wanted.
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

  static std::vector<std::optional<int64_t>> choices(std::span<const LogitRow> rows) {
    std::vector<std::optional<int64_t>> choices;
    for (const LogitRow& row : rows) {
      choices.push_back(row.choice);
    }
    return choices;
  }
  // Of the sequence `at`.
  template <class Change>
  void change(size_t at, Change&& change_request) {
    Submission submission = *sequences_[at]->submission;
    change_request(submission.request);
    sequences_[at]->submission = std::make_shared<const Submission>(std::move(submission));
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
using Scored = std::vector<LogProbRow>;
using Adjusted = std::vector<AdjustedRow>;
using Adjustments = std::vector<LogitAdjustment>;

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
    EXPECT_EQ(slots(step.decode), (Ints{0, 1, 2, -1}));
    EXPECT_EQ(step.decode.samples[0], (SampleRow{.slot = 0,
                                                 .temperature = 0.5f,
                                                 .top_k = 9,
                                                 .top_p = 0.8f,
                                                 .min_p = 0.1f,
                                                 .use_banned = 1,
                                                 .seed = 77,
                                                 .index = 5}));
    EXPECT_EQ(step.decode.log_prob_rows, (Scored{{.row = 1, .token = -2, .top = 0}}));
    EXPECT_TRUE(step.decode.host_rows.empty());
    EXPECT_EQ(step.prefill.tables.token_ids, (Ints{100, 101, 102, 107, 108}));
    EXPECT_EQ(step.prefill.tables.logit_rows, (Ints{0, 1, 2, 4}));
    EXPECT_EQ(slots(step.prefill), (Ints{-1, -1, 3, 4}));
    EXPECT_EQ(step.prefill.log_prob_rows, (Scored{{.row = 0, .token = 8, .top = 0},
                                                  {.row = 1, .token = 9, .top = 0},
                                                  {.row = 2, .token = -4, .top = 0}}));
    EXPECT_TRUE(step.prefill.host_rows.empty());
    EXPECT_TRUE(planned.host_rows().empty());
    EXPECT_EQ(choices(planned.log_prob_rows()), (Choices{1, std::nullopt, std::nullopt, 3}));
    EXPECT_EQ(sequences_[3]->reported, 3);  // they come once
    sequences_[3]->reported = 0;
  }
}

// Those that a device cannot do whole, or whose logits are shown.
TEST_F(PlannedSteps, SomeStayOnTheHost) {
  change(1, [](Request& request) { request.log_probs = kMaxDeviceLogProbs + 1; });
  change(3, [](Request& request) { request.log_probs = kMaxDeviceLogProbs + 1; });
  change(4, [](Request& request) { request.on_logits = [](int64_t, std::span<const float>) {}; });
  PlannedStep planned;
  planned.set(plan_, {}, SampledOn::device);
  const RankStep& step = planned.step();
  EXPECT_EQ(slots(step.decode), (Ints{0, -1, 2, -1}));
  EXPECT_EQ(slots(step.prefill), (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(step.decode.host_rows, Ints{1});
  EXPECT_EQ(step.prefill.host_rows, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(choices(planned.host_rows()), (Choices{1, std::nullopt, std::nullopt, 3, 4}));
  EXPECT_TRUE(planned.log_prob_rows().empty());
  EXPECT_TRUE(step.prefill.log_prob_rows.empty());
  EXPECT_EQ(sequences_[3]->reported, 0);  // they are looked at when they are there
}

// A row's list has the tokens before the row's own, which the device counts.
TEST_F(PlannedSteps, AdjustedRows) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  change(0, [](Request& request) { request.sampling.logit_bias = {{102, 1.5f}, {7, kForbidden}}; });
  change(2, [](Request& request) { request.sampling.repetition_penalty = 1.25f; });
  change(4, [](Request& request) {
    request.sampling.frequency_penalty = 0.5f;
    request.sampling.presence_penalty = -1.0f;
  });
  sequences_[2]->tokens = {9, 9};
  for (const int at : {0, 2, 4}) {
    sequences_[static_cast<size_t>(at)]->adjustments.emplace(
        sequences_[static_cast<size_t>(at)]->request().sampling, 1000);
  }
  PlannedStep planned;
  for (int again = 0; again < 2; ++again) {
    planned.set(plan_, {}, SampledOn::device);
    const RankStep& step = planned.step();
    EXPECT_EQ(step.decode.adjusted_rows,
              (Adjusted{{.row = 0, .last = 0, .first = 0, .count = 3, .generated = 1},
                        {.row = 2,
                         .last = 2,
                         .first = 3,
                         .count = 2,
                         .penalties = {.repetition = 1.25f},
                         .generated = 1}}));
    EXPECT_EQ(step.decode.adjustments, (Adjustments{{.token = 102, .bias = 1.5f},
                                                    {.token = 7, .bias = kForbidden},
                                                    {},
                                                    {.token = 9, .count = 0},
                                                    {}}));
    // The last row of a prompt: nothing is generated.
    EXPECT_EQ(step.prefill.adjusted_rows,
              (Adjusted{{.row = 3,
                         .last = 4,
                         .first = 0,
                         .count = 1,
                         .penalties = {.frequency = 0.5f, .presence = -1.0f},
                         .generated = 0}}));
    EXPECT_EQ(step.prefill.adjustments, Adjustments{{}});
    sequences_[3]->reported = 0;
  }
  // Two tokens later, with one of them in a step that is in flight.
  sequences_[2]->tokens = {9, 9, 30};
  plan_.chunks[2].first = 3;
  sequences_[4]->tokens.push_back(40);
  sequences_[4]->tokens.push_back(40);
  plan_.chunks[4] = {.sequence = sequences_[4].get(),
                     .first = 10,
                     .count = 1,
                     .token_from = {},
                     .choice = 4,
                     .decode = false};
  planned.set(plan_, {}, SampledOn::device);
  EXPECT_EQ(planned.step().decode.adjustments, (Adjustments{{.token = 102, .bias = 1.5f},
                                                            {.token = 7, .bias = kForbidden},
                                                            {},
                                                            {.token = 9, .count = 0},
                                                            {.token = 30, .count = 1},
                                                            {}}));
  EXPECT_EQ(planned.step().prefill.adjustments, (Adjustments{{.token = 40, .count = 1}, {}}));
  EXPECT_EQ(planned.step().prefill.adjusted_rows.at(0).generated, 1);
  // Where the host chooses, it adjusts.
  planned.set(plan_, std::vector<Choice>(4), SampledOn::host);
  EXPECT_TRUE(planned.step().prefill.adjusted_rows.empty());
  EXPECT_TRUE(planned.step().prefill.adjustments.empty());
  EXPECT_TRUE(planned.step().prefill.log_prob_rows.empty());
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
  EXPECT_EQ(choices(planned.host_rows()), (Choices{0, 1, 2, std::nullopt, std::nullopt, 3, 4}));
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
  EXPECT_EQ(choices(planned.log_prob_rows()), Choices{1});
}

}  // namespace
}  // namespace sparsellm
