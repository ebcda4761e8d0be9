#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/paged_kv.h"

namespace sparsellm {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
  return x ^ x >> 27;
}

// A device without a model: the keys and values of a position are a hash of all tokens up to it,
// and so is the next token. It checks what a real one would read.
class FakeDevice {
 public:
  FakeDevice(SchedulerLimits limits, int64_t pages, int steps_ahead, int64_t window = 0)
      : limits_(limits),
        steps_ahead_(steps_ahead),
        window_(window),
        scheduler(limits, pages, window),
        memory_(static_cast<size_t>(pages * kPageSize)) {}

  int64_t submit(const std::vector<int32_t>& prompt, int64_t max_tokens, int32_t samples = 1,
                 bool looks_ahead = true, std::optional<int64_t> decode_from = {}) {
    const int64_t id = next_id_++;
    const auto submission = std::make_shared<const Submission>(
        Submission{.id = id,
                   .request = {.prompt = prompt, .samples = samples, .decode_from = decode_from},
                   .on_token = {}});
    Scheduler::Sequences sequences;
    for (int32_t sample = 0; sample < samples; ++sample) {
      auto sequence = std::make_unique<Sequence>();
      sequence->order = next_order_++;
      sequence->submission = submission;
      sequence->sample = sample;
      sequence->seed = static_cast<uint64_t>(1000 * id + sample);
      sequence->max_length = std::ssize(prompt) + max_tokens;
      sequence->looks_ahead = looks_ahead;
      sequences.push_back(std::move(sequence));
    }
    scheduler.add(std::move(sequences));
    return id;
  }

  // What a sample must end up with.
  static std::vector<int32_t> expected(std::vector<int32_t> prompt, int64_t max_tokens, int64_t id,
                                       int32_t sample) {
    std::vector<int32_t> tokens = std::move(prompt);
    for (int64_t i = 0; i < max_tokens; ++i) {
      tokens.push_back(next_token(hash(tokens), static_cast<uint64_t>(1000 * id + sample)));
    }
    return tokens;
  }

  bool step() {
    Scheduler::Plan plan = scheduler.plan();
    preemptions += std::ssize(plan.preempted);
    recomputed += plan.recomputed;
    shared += plan.shared;
    const bool launched = !plan.empty();
    if (!launched && in_flight_.empty()) {
      return false;
    }
    if (launched) {
      in_flight_.push_back(launch(std::move(plan)));
    }
    if (!launched || std::ssize(in_flight_) > steps_ahead_) {
      const Step step = std::move(in_flight_.front());
      in_flight_.pop_front();
      deliver(step);
    }
    static_cast<void>(scheduler.retire_finished());
    return true;
  }

  void cancel(int64_t id) {
    while (Sequence* sequence = scheduler.find(id)) {
      sequence->finish = FinishReason::cancelled;
    }
    static_cast<void>(scheduler.retire_finished());
  }

 private:
  struct Step {
    Scheduler::Plan plan;
    std::vector<int32_t> choices;
  };

  static uint64_t hash_on(uint64_t hash, int32_t token) {
    return mix(hash * 31 + static_cast<uint64_t>(token) + 1);
  }
  static uint64_t hash(const std::vector<int32_t>& tokens) {
    uint64_t result = 0;
    for (int32_t token : tokens) {
      result = hash_on(result, token);
    }
    return result;
  }
  static int32_t next_token(uint64_t hash, uint64_t seed) {
    return static_cast<int32_t>(mix(hash + seed) % 1000);
  }
  uint64_t& slot(const Sequence& sequence, int64_t position) {
    const int32_t page = sequence.pages.at(static_cast<size_t>(position / kPageSize));
    return memory_.at(static_cast<size_t>(page * kPageSize + position % kPageSize));
  }

  // Decode rows, generated rows that are recomputed, rows of prompts: in this order.
  static int kind_of(const Scheduler::Chunk& chunk) {
    return chunk.decode ? 0 : chunk.generated() ? 1 : 2;
  }

  void check_shape(const Scheduler::Plan& plan) {
    int64_t rows = 0;
    int kind = 0;
    std::map<const Sequence*, int> seen;
    for (const Scheduler::Chunk& chunk : plan.chunks) {
      const Sequence& sequence = *chunk.sequence;
      const int64_t end = chunk.first + chunk.count;
      EXPECT_EQ(++seen[chunk.sequence], 1);
      EXPECT_FALSE(sequence.finish.has_value());
      EXPECT_GE(chunk.count, 1);
      EXPECT_GE(kind_of(chunk), kind);
      kind = kind_of(chunk);
      EXPECT_EQ(chunk.generated(), end > sequence.first_generated()) << "rows of both kinds";
      int64_t& computed = computed_[sequence.order];
      if (chunk.decode) {
        EXPECT_EQ(chunk.count, 1);
        EXPECT_TRUE(chunk.generated());
        EXPECT_EQ(chunk.first, computed);
      } else if (chunk.generated()) {
        EXPECT_LE(end, computed);
      }
      computed = std::max(computed, end);
      rows += chunk.count;
    }
    EXPECT_LE(rows, limits_.step_tokens);
    EXPECT_LE(std::ssize(plan.chunks), limits_.max_requests);
  }

  Step launch(Scheduler::Plan plan) {
    check_shape(plan);
    layouts.emplace_back();
    for (const Scheduler::Chunk& chunk : plan.chunks) {
      layouts.back().push_back({chunk.sequence->order, chunk.first, chunk.count});
    }
    Step step{.plan = std::move(plan), .choices = {}};
    step.choices.resize(static_cast<size_t>(step.plan.choices), -1);
    std::map<const Sequence*, std::vector<int32_t>> tokens;
    for (const Scheduler::Chunk& chunk : step.plan.chunks) {
      std::vector<int32_t>& own = tokens[chunk.sequence];
      own = chunk.sequence->tokens;
      if (chunk.token_from) {
        own.push_back(chosen_.at(static_cast<size_t>(*chunk.token_from)));
      }
      own.resize(static_cast<size_t>(chunk.first + chunk.count));
    }
    // All rows store before any row reads, as in the layers of a model.
    for (const Scheduler::Chunk& chunk : step.plan.chunks) {
      uint64_t running = 0;
      const std::vector<int32_t>& own = tokens[chunk.sequence];
      for (int64_t position = 0; position < std::ssize(own); ++position) {
        running = hash_on(running, own[static_cast<size_t>(position)]);
        if (position >= chunk.first) {
          slot(*chunk.sequence, position) = running;
        }
      }
    }
    for (const Scheduler::Chunk& chunk : step.plan.chunks) {
      uint64_t running = 0;
      const std::vector<int32_t>& own = tokens[chunk.sequence];
      // Keys before the window may be loaded with others, and so have to be of the sequence, too.
      const auto released = static_cast<size_t>(chunk.sequence->released);
      for (size_t i = 0; i < released; ++i) {
        EXPECT_EQ(chunk.sequence->pages.at(i), chunk.sequence->pages.at(released));
      }
      const int64_t first_left = chunk.sequence->released * kPageSize;
      if (window_ == 0) {
        EXPECT_EQ(first_left, 0);
      } else {
        EXPECT_LE(first_left, std::max<int64_t>(chunk.first - window_ + 1, 0));
      }
      for (int64_t position = 0; position < std::ssize(own); ++position) {
        running = hash_on(running, own[static_cast<size_t>(position)]);
        if (position >= first_left) {
          EXPECT_EQ(slot(*chunk.sequence, position), running)
              << "sequence " << chunk.sequence->order << " reads foreign keys at " << position;
        }
      }
      if (chunk.choice) {
        step.choices.at(static_cast<size_t>(*chunk.choice)) =
            next_token(running, chunk.sequence->seed);
      }
    }
    chosen_ = step.choices;
    EXPECT_EQ(std::count(chosen_.begin(), chosen_.end(), -1), 0);
    return step;
  }

  void deliver(const Step& step) {
    scheduler.end_step(step.plan);
    for (const Scheduler::Chunk& chunk : step.plan.chunks) {
      Sequence& sequence = *chunk.sequence;
      if (sequence.finish) {
        continue;
      }
      if (chunk.choice) {
        sequence.tokens.push_back(step.choices[static_cast<size_t>(*chunk.choice)]);
      }
      if (sequence.known_length() == sequence.max_length &&
          (chunk.choice || chunk.first + chunk.count == sequence.max_length)) {
        sequence.finish = FinishReason::length;
        finished[{sequence.submission->id, sequence.sample}] = sequence.tokens;
        finish_order.push_back(sequence.submission->id);
      }
    }
  }

  SchedulerLimits limits_;
  int steps_ahead_;
  int64_t window_;

 public:
  Scheduler scheduler;
  std::map<std::pair<int64_t, int32_t>, std::vector<int32_t>> finished;
  std::vector<int64_t> finish_order;
  struct Rows {
    int64_t order;  // of the sequence
    int64_t first;
    int64_t count;

    friend bool operator==(const Rows&, const Rows&) = default;
  };
  std::vector<std::vector<Rows>> layouts;  // of the chunks of each step
  int64_t preemptions = 0;
  int64_t recomputed = 0;
  int64_t shared = 0;

 private:
  std::vector<uint64_t> memory_;  // [pages * kPageSize]
  std::vector<int32_t> chosen_;   // by the latest step
  std::deque<Step> in_flight_;
  std::map<int64_t, int64_t> computed_;  // by order of the sequence: the end of its rows
  int64_t next_id_ = 1;
  int64_t next_order_ = 1;
};

std::vector<int32_t> prompt_of(int64_t length, int32_t first = 1) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = first + static_cast<int32_t>(i);
  }
  return prompt;
}

using Layouts = std::vector<std::vector<FakeDevice::Rows>>;

void expect_whole_pool(const FakeDevice& device) {
  EXPECT_EQ(device.scheduler.pages().free_pages(), device.scheduler.pages().total_pages());
}

TEST(Scheduler, DecodesFirstAndCutsPromptsToTheBudget) {
  FakeDevice device({.step_tokens = 20, .max_requests = 4}, 100, 0);
  device.submit(prompt_of(5), 10);
  Scheduler::Plan plan = device.scheduler.plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].count, 5);
  EXPECT_FALSE(plan.chunks[0].decode);
  plan.chunks[0].sequence->tokens.push_back(7);
  device.scheduler.end_step(plan);

  device.submit(prompt_of(50), 10);
  device.submit(prompt_of(3), 10);
  const std::vector<std::vector<int64_t>> counts{{1, 19}, {1, 19}, {1, 12, 3}, {1, 1, 1}};
  for (const std::vector<int64_t>& expected : counts) {
    plan = device.scheduler.plan();
    std::vector<int64_t> got;
    for (const Scheduler::Chunk& chunk : plan.chunks) {
      got.push_back(chunk.count);
      if (chunk.choice) {
        chunk.sequence->tokens.push_back(7);
      }
    }
    EXPECT_EQ(got, expected);
    EXPECT_TRUE(plan.chunks[0].decode);
    device.scheduler.end_step(plan);
  }
}

TEST(Scheduler, AdmitsWhenThePagesForThePromptAreThere) {
  FakeDevice device({.step_tokens = 100, .max_requests = 8}, 6, 0);
  device.submit(prompt_of(48), 30);  // 3 pages now, 5 in the end
  device.submit(prompt_of(48), 10);
  ASSERT_EQ(device.scheduler.plan().chunks.size(), 1u);  // 3 are free, one of them is to spare
  EXPECT_EQ(device.scheduler.pages().free_pages(), 3);
}

TEST(Scheduler, TheYoungestGivesWay) {
  for (int steps_ahead : {0, 1}) {
    FakeDevice device({.step_tokens = 64, .max_requests = 8}, 8, steps_ahead);
    for (int i = 0; i < 4; ++i) {
      device.submit(prompt_of(15, 100 * i), 50);  // a page each now, 5 in the end
    }
    while (device.step()) {
    }
    EXPECT_GT(device.preemptions, 0);
    EXPECT_GT(device.recomputed, 0);
    EXPECT_EQ(device.finish_order, (std::vector<int64_t>{1, 2, 3, 4}));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ((device.finished[{i + 1, 0}]),
                FakeDevice::expected(prompt_of(15, 100 * i), 50, i + 1, 0));
    }
    expect_whole_pool(device);
  }
}

// A preempted sequence is computed again: its prompt, then what it had generated in chunks in front
// of prompts, then one row a step.
TEST(Scheduler, RecomputesThePromptApart) {
  for (int steps_ahead : {0, 1}) {
    FakeDevice device({.step_tokens = 8, .max_requests = 3}, 4, steps_ahead);
    device.submit(prompt_of(15), 19);
    device.submit(prompt_of(14), 20);
    device.submit(prompt_of(12), 4);
    while (device.step()) {
    }
    EXPECT_EQ(device.preemptions, 1);
    EXPECT_EQ(device.recomputed, 29);
    const auto again =
        std::find_if(device.layouts.rbegin(), device.layouts.rend(), [](const auto& rows) {
          return rows.front() == FakeDevice::Rows{2, 0, 8};
        });
    ASSERT_NE(again, device.layouts.rend());
    EXPECT_EQ(Layouts(again.base() - 1, device.layouts.end()), (Layouts{{{2, 0, 8}},
                                                                        {{2, 8, 6}, {3, 0, 2}},
                                                                        {{2, 14, 8}},
                                                                        {{2, 22, 7}, {3, 2, 1}},
                                                                        {{2, 29, 1}, {3, 3, 7}},
                                                                        {{2, 30, 1}, {3, 10, 2}},
                                                                        {{2, 31, 1}, {3, 12, 1}},
                                                                        {{2, 32, 1}, {3, 13, 1}},
                                                                        {{3, 14, 1}}}));
  }
}

TEST(Scheduler, ALongRequestIsNotStarvedByShorterOnes) {
  FakeDevice device({.step_tokens = 64, .max_requests = 4}, 10, 0);
  for (int i = 0; i < 3; ++i) {
    device.submit(prompt_of(10), 20);
  }
  const int64_t large = device.submit(prompt_of(150), 10);  // all ten pages
  int steps = 0;
  while (!device.finished.contains({large, 0})) {
    device.submit(prompt_of(3), 2);
    ASSERT_TRUE(device.step());
    ASSERT_LT(++steps, 200);
  }
  // Nothing that came later was done before it.
  EXPECT_EQ(*std::max_element(device.finish_order.begin(), device.finish_order.end()), large);
}

TEST(Scheduler, SamplesShareThePagesOfTheirPrompt) {
  FakeDevice device({.step_tokens = 64, .max_requests = 8}, 40, 0);
  device.submit(prompt_of(100), 20, 5);
  int64_t most_used = 0;
  while (device.step()) {
    const PageAllocator& pages = device.scheduler.pages();
    most_used = std::max(most_used, pages.total_pages() - pages.free_pages());
  }
  EXPECT_EQ(device.shared, 4 * 96);
  EXPECT_EQ(most_used, 6 + 5 * 2);  // 6 whole pages, and positions 96 to 118 five times
  for (int32_t sample = 0; sample < 5; ++sample) {
    EXPECT_EQ((device.finished[{1, sample}]), FakeDevice::expected(prompt_of(100), 20, 1, sample));
  }
  expect_whole_pool(device);
}

TEST(Scheduler, SamplesShareWhatComesBeforeDecodeFrom) {
  for (int64_t decode_from : {1, 16, 17, 50, 99, 100}) {
    FakeDevice device({.step_tokens = 64, .max_requests = 8}, 40, 1);
    device.submit(prompt_of(100), 20, 5, /*looks_ahead=*/true, decode_from);
    while (device.step()) {
    }
    EXPECT_EQ(device.shared, 4 * ((decode_from - 1) / 16 * 16)) << decode_from;
    for (int32_t sample = 0; sample < 5; ++sample) {
      EXPECT_EQ((device.finished[{1, sample}]),
                FakeDevice::expected(prompt_of(100), 20, 1, sample));
    }
    expect_whole_pool(device);
  }
}

TEST(Scheduler, FromDecodeFromOnAPromptHasOneRowAStep) {
  FakeDevice device({.step_tokens = 6, .max_requests = 3}, 40, 0);
  device.submit(prompt_of(10), 2, 1, /*looks_ahead=*/true, /*decode_from=*/7);
  device.submit(prompt_of(4), 1, 1, /*looks_ahead=*/true, /*decode_from=*/1);
  device.submit(prompt_of(9), 0, 1, /*looks_ahead=*/false, /*decode_from=*/8);
  while (device.step()) {
  }
  EXPECT_EQ(device.layouts, (Layouts{{{1, 0, 6}},
                                     {{1, 6, 1}, {2, 0, 1}, {3, 0, 4}},
                                     {{1, 7, 1}, {2, 1, 1}, {3, 4, 4}},
                                     {{1, 8, 1}, {2, 2, 1}, {3, 8, 1}},
                                     {{1, 9, 1}, {2, 3, 1}},
                                     {{1, 10, 1}}}));
  EXPECT_EQ((device.finished[{1, 0}]), FakeDevice::expected(prompt_of(10), 2, 1, 0));
  EXPECT_EQ((device.finished[{2, 0}]), FakeDevice::expected(prompt_of(4), 1, 2, 0));
  EXPECT_EQ((device.finished[{3, 0}]), prompt_of(9));
}

// At the end of the prompt it makes no difference.
TEST(Scheduler, DecodeFromTheEndOfThePrompt) {
  Layouts layouts[2];
  for (Layouts& of_run : layouts) {
    FakeDevice device({.step_tokens = 6, .max_requests = 3}, 40, 0);
    for (int64_t length : {1, 7, 16, 33}) {
      device.submit(prompt_of(length), 5, 2, /*looks_ahead=*/true,
                    &of_run == layouts ? std::optional<int64_t>() : length);
    }
    while (device.step()) {
    }
    of_run = device.layouts;
  }
  EXPECT_EQ(layouts[0], layouts[1]);
}

TEST(Scheduler, OnlyOneThatLooksAheadHasRowsInTwoSteps) {
  FakeDevice device({.step_tokens = 64, .max_requests = 8}, 40, 1);
  device.submit(prompt_of(4), 8, 1, /*looks_ahead=*/true);
  device.submit(prompt_of(4), 8, 1, /*looks_ahead=*/false);
  while (device.step()) {
  }
  EXPECT_EQ(device.finish_order, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ((device.finished[{2, 0}]), FakeDevice::expected(prompt_of(4), 8, 2, 0));
  expect_whole_pool(device);
}

TEST(Scheduler, OneSequenceMayTakeTheWholePool) {
  FakeDevice device({.step_tokens = 64, .max_requests = 8}, 4, 0);
  const int64_t id = device.submit(prompt_of(60), 4);
  while (device.step()) {
  }
  EXPECT_TRUE(device.finished.contains({id, 0}));
}

// A window of 40 in pages of 16: a row sees at most 4 of them.
TEST(Scheduler, PagesThatLeaveTheWindowAreFreed) {
  FakeDevice device({.step_tokens = 64, .max_requests = 8}, 20, 1, 40);
  const int64_t id = device.submit(prompt_of(100), 200);
  int64_t most_used_at_the_end = 0;
  while (device.step()) {
    const Sequence* sequence = device.scheduler.find(id);
    if (sequence != nullptr && sequence->planned > 150) {
      const PageAllocator& pages = device.scheduler.pages();
      most_used_at_the_end =
          std::max(most_used_at_the_end, pages.total_pages() - pages.free_pages());
    }
  }
  EXPECT_EQ(most_used_at_the_end, 4);
  EXPECT_EQ((device.finished[{id, 0}]), FakeDevice::expected(prompt_of(100), 200, id, 0));
  expect_whole_pool(device);
}

// 5 of them would take 65 pages without a window.
TEST(Scheduler, MoreSequencesFitBesideEachOtherWithAWindow) {
  FakeDevice device({.step_tokens = 64, .max_requests = 8}, 30, 0, 40);
  for (int i = 0; i < 5; ++i) {
    device.submit(prompt_of(60), 140);
  }
  while (device.step()) {
  }
  EXPECT_EQ(device.preemptions, 0);
  EXPECT_EQ(device.finished.size(), 5u);
  expect_whole_pool(device);
}

TEST(Scheduler, SamplesShareAPromptThatIsLongerThanTheWindow) {
  for (int64_t window : {1, 8, 16, 17, 40, 100}) {
    FakeDevice device({.step_tokens = 64, .max_requests = 8}, 60, 1, window);
    device.submit(prompt_of(150), 20, 4);
    while (device.step()) {
    }
    EXPECT_EQ(device.shared, 3 * 144) << window;
    for (int32_t sample = 0; sample < 4; ++sample) {
      EXPECT_EQ((device.finished[{1, sample}]),
                FakeDevice::expected(prompt_of(150), 20, 1, sample));
    }
    expect_whole_pool(device);
  }
}

TEST(Scheduler, RandomTraffic) {
  for (uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const int64_t pages = 6 + below(40);
    const int64_t max_requests = 1 + below(12);
    const int64_t step_tokens = max_requests + below(60);
    const int64_t window = seed < 60 ? 0 : 1 + below(100);
    FakeDevice device({.step_tokens = step_tokens, .max_requests = max_requests}, pages,
                      static_cast<int>(seed % 2), window);
    struct Sent {
      std::vector<int32_t> prompt;
      int64_t max_tokens;
      int32_t samples;
      bool cancelled = false;
    };
    std::map<int64_t, Sent> sent;
    for (int round = 0; round < 400; ++round) {
      if (round < 250 && below(3) == 0) {
        const int64_t length = 1 + below(pages * kPageSize - 1);
        const int64_t max_tokens = below(std::min<int64_t>(60, pages * kPageSize - length) + 1);
        const auto samples = static_cast<int32_t>(below(4) == 0 ? 1 + below(5) : 1);
        Sent one{.prompt = prompt_of(length, static_cast<int32_t>(below(500))),
                 .max_tokens = max_tokens,
                 .samples = samples};
        const std::optional<int64_t> decode_from =
            below(4) == 0 ? std::optional(1 + below(length)) : std::nullopt;
        const int64_t id =
            device.submit(one.prompt, max_tokens, samples, below(4) != 0, decode_from);
        sent.emplace(id, std::move(one));
      }
      if (below(20) == 0 && !sent.empty()) {
        const int64_t id = 1 + below(std::ssize(sent));
        device.cancel(id);
        sent.at(id).cancelled = true;
      }
      device.step();
    }
    while (device.step()) {
    }
    for (const auto& [id, one] : sent) {
      for (int32_t sample = 0; sample < one.samples; ++sample) {
        const auto done = device.finished.find({id, sample});
        if (done == device.finished.end()) {
          EXPECT_TRUE(one.cancelled) << "seed " << seed << ": " << id << " never finished";
        } else {
          EXPECT_EQ(done->second, FakeDevice::expected(one.prompt, one.max_tokens, id, sample))
              << "seed " << seed;
        }
      }
    }
    expect_whole_pool(device);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace sparsellm
