// Several ranks that do what rank 0 says, as threads; each has the whole of a tiny model, or
// computes nothing at all.

#include "engine/rank_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/resolve_options.h"
#include "kernels/base/comm_threads.h"
#include "kernels/base/error.h"
#include "kernels/paged_kv.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "tests/engine/rank_steps.h"
#include "tests/testing/forwarding_runner.h"
#include "tests/testing/paths.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using std::chrono::steady_clock;

// It takes milliseconds on an idle machine; who waits for a timeout takes longer.
constexpr auto kAtOnce = std::chrono::seconds(5);

enum class Phase : uint8_t { load, launch, finish, warm_up };

// What the rank `rank` does differently.
struct Behaviour {
  int rank = -1;
  std::function<void(Phase)> meet = [](Phase) {};
};

// A device that samples, as it says: a token is the number of its step, ten times, and its place.
class FakeRunner : public testing::ForwardingRunner {
 public:
  FakeRunner(std::unique_ptr<StepRunner> runner, std::function<void(Phase)> meet,
             std::vector<RankStep>& seen, int32_t token = 0)
      : ForwardingRunner(std::move(runner)), meet_(std::move(meet)), seen_(seen), token_(token) {}

  bool samples() const override { return true; }
  int launch(const RankStep& step, const KvCache&) override {
    meet_(Phase::launch);
    seen_.push_back(step);
    return static_cast<int>(seen_.size());
  }
  std::optional<Tensor> next_logits() override { return std::nullopt; }
  std::span<const int32_t> finish(int number) override {
    meet_(Phase::finish);
    tokens_.clear();
    for (int32_t place = 0; place < 5; ++place) {
      // The place 2 is that of a token which the host chooses: whatever stands there.
      tokens_.push_back(place == 2 ? token_ : 10 * number + place);
    }
    return tokens_;
  }
  void warm_up(const KvCache&) override { meet_(Phase::warm_up); }

 private:
  std::function<void(Phase)> meet_;
  std::vector<RankStep>& seen_;
  int32_t token_;
  std::vector<int32_t> tokens_;
};

// Makes ranks with the whole of a tiny model.
class Ranks {
 public:
  explicit Ranks(int count, Behaviour behaviour = {})
      : count_(count), behaviour_(std::move(behaviour)), seen_(static_cast<size_t>(count)) {}

  // The steps that a rank was told to compute.
  std::vector<RankStep>& seen(int rank) { return seen_[static_cast<size_t>(rank)]; }

  std::unique_ptr<RankGroup> start(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return std::make_unique<RankGroup>(
        make_thread_communicators(count_, {.devices = {}, .timeout = timeout}),
        [this](Communicator& comm) { return load(comm); });
  }

 private:
  std::unique_ptr<Rank> load(Communicator& comm) {
    const int rank = comm.rank();
    EngineOptions options;
    options.threads = 1;
    options.context_size = 48;
    options.max_requests = 5;
    options.step_tokens = 8;
    options.kv_tokens = kPageSize * (9 + rank);
    options.warm_up = true;
    const auto meet = rank == behaviour_.rank ? behaviour_.meet : [](Phase) {};
    options.wrap_runner = [this, rank, meet](std::unique_ptr<StepRunner> runner) {
      return std::make_unique<FakeRunner>(std::move(runner), meet, seen(rank), rank);
    };
    const ModelConfig config = config_to_run(read_model_config(directory()), options);
    const Checkpoint checkpoint(directory());
    meet(Phase::load);
    CheckpointLoader weights(checkpoint, options.device, options.dtype, {});
    return std::make_unique<Rank>(options, config, weights, &comm);
  }
  static std::filesystem::path directory() { return testing::data("tiny/llama3"); }

  int count_;
  Behaviour behaviour_;
  std::vector<std::vector<RankStep>> seen_;
};

TEST(RankGroup, AllRanksReplayWhatRank0Does) {
  for (const int count : {1, 2, 4}) {
    Ranks ranks(count);
    {
      const std::unique_ptr<RankGroup> group = ranks.start();
      EXPECT_EQ(group->first().kv().pages(), 9);  // of the poorest
      RankStep one = testing::device_step();
      const int first = group->launch(one);
      EXPECT_FALSE(group->next_logits());
      one.decode.tables.token_ids[0] = 33;
      const int second = group->launch(one);
      EXPECT_FALSE(group->next_logits());
      EXPECT_EQ(group->finish(first)[3], 13);
      const int third = group->launch(testing::device_step());
      EXPECT_FALSE(group->next_logits());
      EXPECT_EQ(group->finish(second)[4], 24);
      EXPECT_EQ(group->finish(third)[0], 30);
      EXPECT_EQ(group->neuron_counts().size(), 2u);
    }
    for (int rank = 0; rank < count; ++rank) {
      ASSERT_EQ(ranks.seen(rank).size(), 3u);
      for (size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(testing::without_host_rows(ranks.seen(rank)[step]),
                  testing::without_host_rows(ranks.seen(0)[step]));
      }
    }
  }
}

// Of several steps in flight the older ones are lost where a caller fails between them.
TEST(RankGroup, StepsThatNobodyWaitsFor) {
  Ranks ranks(2);
  const std::unique_ptr<RankGroup> group = ranks.start();
  int number = 0;
  for (int step = 0; step < 3; ++step) {
    number = group->launch(testing::device_step());
    EXPECT_FALSE(group->next_logits());
  }
  EXPECT_EQ(group->finish(number)[0], 30);
  number = group->launch(testing::device_step());
  EXPECT_FALSE(group->next_logits());
  EXPECT_EQ(group->finish(number)[0], 40);
}

void run_steps(RankGroup& group, int count) {
  for (int i = 0; i < count; ++i) {
    const int number = group.launch(testing::device_step());
    while (group.next_logits()) {
    }
    group.finish(number);
  }
}

std::string lost_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceLost& error) {
    return error.what();
  }
  return "no error";
}

// The ranks, and what ends a call of one of them.
struct Failure {
  Phase phase;
  std::function<void()> fail;
  std::string line;
};

TEST(RankGroup, ARankThatThrowsEndsAll) {
  const std::vector<Failure> failures{
      {Phase::load, [] { throw Error("a bad file"); }, "a bad file"},
      {Phase::warm_up, [] { throw OutOfMemory("no memory for it"); }, "no memory for it"},
      {Phase::launch, [] { throw std::runtime_error("a bad launch"); }, "a bad launch"},
      {Phase::finish, [] { throw std::bad_alloc(); }, "out of memory"},
  };
  for (const int rank : {0, 1, 2}) {
    for (const Failure& failure : failures) {
      const std::string line = fmt::format("rank {} (cpu): {}", rank, failure.line);
      SCOPED_TRACE(line);
      int calls = 0;
      Ranks ranks(3, {.rank = rank, .meet = [&](Phase phase) {
                        const int before = phase < Phase::warm_up && phase > Phase::load ? 2 : 0;
                        if (phase == failure.phase && calls++ == before) {
                          failure.fail();
                        }
                      }});
      const steady_clock::time_point start = steady_clock::now();
      std::unique_ptr<RankGroup> group;
      if (failure.phase == Phase::load || failure.phase == Phase::warm_up) {
        EXPECT_TRUE(testing::throws_error([&] { group = ranks.start(); }, line));
      } else {
        group = ranks.start();
        EXPECT_EQ(lost_by([&] { run_steps(*group, 5); }), line);
        EXPECT_EQ(lost_by([&] { group->launch(testing::device_step()); }), line);
        EXPECT_EQ(lost_by([&] { group->finish(1); }), line);
        EXPECT_EQ(lost_by([&] { group->neuron_counts(); }), line);
        group.reset();
      }
      EXPECT_LT(steady_clock::now() - start, kAtOnce);
    }
  }
}

// An exception of another kind, as that of a progress bar that ends the program, is what it was.
// A caller may try with less.
TEST(RankGroup, WantOfMemoryOnOneIsThatOfAll) {
  for (const int rank : {0, 1, 2}) {
    Ranks ranks(3, {.rank = rank, .meet = [](Phase phase) {
                      if (phase == Phase::load) {
                        throw OutOfMemory("no memory for it");
                      }
                    }});
    try {
      ranks.start();
      ADD_FAILURE() << "no error";
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.what(), fmt::format("rank {} (cpu): no memory for it", rank));
    }
  }
}

TEST(RankGroup, WhatLoadingThrowsOnRank0IsThrownOn) {
  struct Stopped {};
  Ranks ranks(2, {.rank = 0, .meet = [](Phase) { throw Stopped(); }});
  EXPECT_THROW(ranks.start(), Stopped);
}

TEST(RankGroup, ARankWithOtherTokensEndsAll) {
  std::vector<RankStep>* seen = nullptr;
  Ranks ranks(3, {.rank = 2, .meet = [&](Phase phase) {
                    if (phase == Phase::launch && seen->size() == 1) {
                      seen->emplace_back();  // from now on its tokens are those of a later step
                    }
                  }});
  seen = &ranks.seen(2);
  const std::unique_ptr<RankGroup> group = ranks.start();
  const std::string line = "rank 2 (cpu): step 2: token 33 where rank 0 chose 23";
  EXPECT_EQ(lost_by([&] { run_steps(*group, 3); }), line);
  EXPECT_EQ(lost_by([&] { run_steps(*group, 1); }), line);
}

TEST(RankGroup, ARankThatStallsEndsAll) {
  std::timed_mutex stall;
  stall.lock();
  Ranks ranks(2, {.rank = 1, .meet = [&](Phase phase) {
                    if (phase == Phase::finish) {
                      static_cast<void>(stall.try_lock_for(std::chrono::seconds(20)));
                    }
                  }});
  std::unique_ptr<RankGroup> group = ranks.start(std::chrono::milliseconds(200));
  const std::string line = "rank 1 (cpu): did not come within 0.2 s";
  EXPECT_EQ(lost_by([&] { run_steps(*group, 1); }), line);
  EXPECT_EQ(lost_by([&] { run_steps(*group, 1); }), line);
  stall.unlock();
  group.reset();
}

TEST(RankGroup, GivingUpAStepEndsAll) {
  Ranks ranks(2);
  const std::unique_ptr<RankGroup> group = ranks.start();
  run_steps(*group, 1);
  group->give_up("nothing was launched");
  run_steps(*group, 1);
  group->launch(testing::device_step());
  group->give_up("enough");
  EXPECT_EQ(lost_by([&] { run_steps(*group, 1); }), "rank 0 (cpu): enough");
}

TEST(RankGroup, OneRankIsAlone) {
  Ranks ranks(1);
  RankGroup group([&] {
    EngineOptions options;
    options.threads = 1;
    options.context_size = 48;
    options.max_requests = 5;
    options.step_tokens = 8;
    options.kv_tokens = 144;
    const Checkpoint checkpoint(testing::data("tiny/llama3"));
    CheckpointLoader weights(checkpoint, options.device, options.dtype, {});
    auto rank = std::make_unique<Rank>(
        options, config_to_run(read_model_config(testing::data("tiny/llama3")), options), weights);
    rank->prepare();
    rank->start(rank->fitting_pages());
    return rank;
  }());
  const RankStep step = testing::host_step();
  const int number = group.launch(step);
  int64_t rows = 0;
  while (const std::optional<Tensor> logits = group.next_logits()) {
    rows += logits->size(0);
  }
  EXPECT_EQ(rows, 3);
  EXPECT_TRUE(group.finish(number).empty());
  RankStep too_long = step;
  too_long.prefill.tables.token_ids[0] = 1 << 20;
  EXPECT_THROW(group.launch(too_long), Error);
  group.give_up("a bad step");
  group.launch(step);  // nothing has ended
}

}  // namespace
}  // namespace sparsellm
