// The loop by itself: what it hands over, and what is left of requests that end early.

#include "tools/serve/engine_loop.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tools/serve/serve_fixture.h"

namespace sparsellm {
namespace {

using testing::WatchedEngine;
using Kind = LoopEvents::Kind;

EngineOptions options(int64_t max_requests, int64_t kv_tokens) {
  EngineOptions engine;
  engine.max_requests = max_requests;
  engine.kv_tokens = kv_tokens;
  return engine;
}

std::vector<Request> requests(int64_t tokens, int32_t count = 1, int32_t samples = 1) {
  Request request;
  request.prompt = {5, 6, 7, 8};
  request.max_tokens = tokens;
  request.samples = samples;
  request.ignore_eos = true;
  return std::vector<Request>(static_cast<size_t>(count), request);
}

// Runs on the test's thread: hooks of the engine are called between the steps, so that what
// happens, happens in every run at the same step.
class LoopTest : public ::testing::Test {
 protected:
  void run() {
    loop_.run(*engine_, [this](std::string_view text) { logged_.emplace_back(text); });
  }
  // Before the step of a number, from 1 on. Steps that find nothing to do count, too.
  void before_step(const std::function<void(int64_t step)>& action) {
    engine_->before_step = [this, action] { action(engine_->steps); };
  }
  void stop_when_idle() {
    before_step([this](int64_t) { stop_if_idle(); });
  }
  void stop_if_idle() {
    const EngineStats& stats = engine_->engine.stats();
    if (engine_->steps > 1 && stats.running == 0 && stats.waiting == 0) {
      loop_.stop();
    }
  }
  void make(const EngineOptions& of) { engine_ = std::make_unique<WatchedEngine>(of); }

  int64_t free_pages() const { return engine_->engine.free_pages(); }
  int64_t total_pages() const { return engine_->engine.total_pages(); }
  int64_t count(Kind kind, Ticket ticket) const {
    int64_t found = 0;
    for (const auto& events : handed_) {
      for (const LoopEvents::Event& event : events->events) {
        found += event.kind == kind && event.ticket == ticket ? 1 : 0;
      }
    }
    return found;
  }
  int64_t tokens(Ticket ticket) const {
    int64_t found = 0;
    for (const auto& events : handed_) {
      for (const LoopEvents::Event& event : events->events) {
        found += event.ticket == ticket && event.token ? 1 : 0;
      }
    }
    return found;
  }

  std::unique_ptr<WatchedEngine> engine_ = std::make_unique<WatchedEngine>();
  std::vector<std::unique_ptr<LoopEvents>> handed_;
  EngineLoop loop_{
      [this](std::unique_ptr<LoopEvents> events) { handed_.push_back(std::move(events)); }};
  std::vector<std::string> logged_;
};

TEST_F(LoopTest, HandsOverOnceAStep) {
  stop_when_idle();
  for (Ticket ticket = 1; ticket <= 5; ++ticket) {
    loop_.submit(ticket, requests(6));
  }
  run();
  EXPECT_LE(std::ssize(handed_), engine_->steps);
  for (Ticket ticket = 1; ticket <= 5; ++ticket) {
    EXPECT_EQ(count(Kind::accepted, ticket), 1);
    EXPECT_EQ(count(Kind::started, ticket), 1);
    EXPECT_EQ(tokens(ticket), 6);
  }
  // All five are in the same steps.
  EXPECT_LE(std::ssize(handed_), 8);
  EXPECT_EQ(handed_[0]->events[0].kind, Kind::accepted);
}

TEST_F(LoopTest, HandsOverNothingForNothing) {
  before_step([this](int64_t) { loop_.stop(); });
  loop_.cancel(7);
  run();
  EXPECT_TRUE(handed_.empty());
}

TEST_F(LoopTest, TextsAreThoseOfTheEvents) {
  stop_when_idle();
  std::vector<Request> both = requests(8, 2, 2);
  both[1].prompt = {9, 10};
  loop_.submit(1, std::move(both));
  run();
  std::map<std::pair<int32_t, int32_t>, std::string> texts;
  for (const auto& events : handed_) {
    for (const LoopEvents::Event& event : events->events) {
      texts[{event.request, event.sample}] += events->text_of(event);
    }
  }
  for (int32_t request : {0, 1}) {
    Request alone = requests(8, 1, 2)[0];
    alone.prompt = request == 0 ? alone.prompt : std::vector<int32_t>{9, 10};
    for (const Completion& done : engine_->engine.generate({alone})) {
      EXPECT_EQ((texts[{request, done.sample}]), done.text);
    }
  }
}

TEST_F(LoopTest, LogProbsAreCopied) {
  stop_when_idle();
  std::vector<Request> scored = requests(3);
  scored[0].log_probs = 2;
  scored[0].prompt_log_probs = true;
  loop_.submit(1, std::move(scored));
  run();
  int64_t of_tokens = 0;
  int64_t of_prompt = 0;
  for (const auto& events : handed_) {
    for (const LoopEvents::Event& event : events->events) {
      of_prompt += event.prompt_log_probs_count;
      if (event.log_probs >= 0) {
        const TokenLogProbs& log_probs = events->log_probs[static_cast<size_t>(event.log_probs)];
        EXPECT_EQ(log_probs.token.token, event.token);
        EXPECT_EQ(log_probs.top.size(), 2u);
        ++of_tokens;
      }
      if (event.prompt_log_probs >= 0) {
        EXPECT_EQ(events->log_probs[static_cast<size_t>(event.prompt_log_probs)].token.token, 6);
      }
    }
  }
  EXPECT_EQ(of_tokens, 3);
  EXPECT_EQ(of_prompt, 3);
}

TEST_F(LoopTest, ACancelledRequestThatWaitsLeavesNoPage) {
  make(options(1, 512));
  loop_.submit(1, requests(20));
  loop_.submit(2, requests(20));
  before_step([this](int64_t step) {
    if (step == 4) {
      EXPECT_EQ(engine_->engine.stats().running, 1);
      EXPECT_EQ(engine_->engine.stats().waiting, 1);
      loop_.cancel(2);
    } else if (step == 5) {
      EXPECT_EQ(engine_->engine.stats().waiting, 0);
    }
    stop_if_idle();
  });
  run();
  EXPECT_EQ(tokens(1), 20);
  EXPECT_EQ(tokens(2), 0);
  EXPECT_EQ(count(Kind::started, 2), 0);
  EXPECT_EQ(free_pages(), total_pages());
}

TEST_F(LoopTest, ACancelledRequestThatRunsLeavesNoPage) {
  loop_.submit(1, requests(50, 2, 3));
  before_step([this](int64_t step) {
    if (step == 6) {
      EXPECT_EQ(engine_->engine.stats().running, 6);
      EXPECT_LT(free_pages(), total_pages());
      loop_.cancel(1);
      loop_.cancel(1);  // and once more
      loop_.cancel(2);  // which nobody has
    }
    stop_if_idle();
  });
  run();
  EXPECT_LE(engine_->steps, 9);
  EXPECT_EQ(free_pages(), total_pages());
  EXPECT_LT(tokens(1), 6 * 6 + 1);
}

TEST_F(LoopTest, ACancelThatComesWithItsRequest) {
  loop_.submit(1, requests(50));
  loop_.cancel(1);
  loop_.submit(2, requests(4));
  stop_when_idle();
  run();
  EXPECT_EQ(tokens(1), 0);
  EXPECT_EQ(tokens(2), 4);
  EXPECT_EQ(free_pages(), total_pages());
}

TEST_F(LoopTest, ARefusedRequestTakesTheOthersOfItsTicketAlong) {
  std::vector<Request> all = requests(50, 3);
  all[2].prompt = {600};
  loop_.submit(1, std::move(all));
  loop_.submit(2, requests(4));
  stop_when_idle();
  run();
  EXPECT_EQ(count(Kind::refused, 1), 1);
  EXPECT_EQ(count(Kind::accepted, 1) + count(Kind::failed, 1) + count(Kind::token, 1), 0);
  EXPECT_NE(handed_[0]->error_of(handed_[0]->events[0]).find("600"), std::string_view::npos);
  EXPECT_EQ(tokens(2), 4);
  EXPECT_EQ(free_pages(), total_pages());
}

TEST_F(LoopTest, AnEngineThatFailsToTakeARequest) {
  int calls = 0;
  engine_->before_submit = [&] {
    if (++calls == 2) {
      throw std::bad_alloc();
    }
    if (calls == 3) {
      throw std::runtime_error("it cannot");
    }
  };
  loop_.submit(1, requests(50, 2));
  loop_.submit(2, requests(50));
  loop_.submit(3, requests(4));
  stop_when_idle();
  run();
  EXPECT_EQ(count(Kind::failed, 1), 1);
  EXPECT_EQ(count(Kind::failed, 2), 1);
  EXPECT_EQ(handed_[0]->error_of(handed_[0]->events[0]), "out of memory");
  EXPECT_EQ(handed_[0]->error_of(handed_[0]->events[1]), "it cannot");
  EXPECT_FALSE(handed_[0]->lost);
  EXPECT_EQ(tokens(3), 4);
  EXPECT_EQ(free_pages(), total_pages());
}

TEST_F(LoopTest, AfterStopNothingIsLeft) {
  loop_.submit(1, requests(50, 2, 2));
  before_step([this](int64_t step) {
    if (step == 5) {
      loop_.stop();
    }
  });
  run();
  EXPECT_EQ(engine_->steps, 5);
  EXPECT_EQ(free_pages(), total_pages());
  for (const auto& events : handed_) {
    for (const LoopEvents::Event& event : events->events) {
      EXPECT_NE(event.finish, FinishReason::cancelled);
    }
  }
}

TEST_F(LoopTest, StoppedBeforeItRunsItComputesNothing) {
  loop_.submit(1, requests(5));
  loop_.stop();
  run();
  EXPECT_EQ(engine_->steps, 0);
  EXPECT_EQ(free_pages(), total_pages());
}

TEST_F(LoopTest, ALostDeviceIsTheEnd) {
  loop_.submit(1, requests(50));
  before_step([this](int64_t step) {
    if (step == 4) {
      engine_->lost = "it is lost";
      throw DeviceLost("it is lost");
    }
  });
  run();
  EXPECT_EQ(engine_->steps, 4);
  EXPECT_EQ(logged_, std::vector<std::string>{"it is lost"});
}

TEST_F(LoopTest, WhatIsHandedOverAfterALossSaysSo) {
  engine_->before_submit = [this] {
    engine_->lost = "it is lost";
    throw DeviceLost("it is lost");
  };
  loop_.submit(1, requests(5));
  run();
  ASSERT_EQ(handed_.size(), 1u);
  EXPECT_TRUE(handed_[0]->lost);
  EXPECT_EQ(handed_[0]->events[0].kind, Kind::failed);
}

// The next step may do better.
TEST_F(LoopTest, AStepThatThrowsIsNotTheEnd) {
  loop_.submit(1, requests(5));
  before_step([this](int64_t step) {
    if (step == 3) {
      throw std::bad_alloc();
    }
    stop_if_idle();
  });
  run();
  EXPECT_EQ(tokens(1), 5);
  EXPECT_EQ(logged_.size(), 1u);
}

TEST_F(LoopTest, StatusIsCurrentWhileThereIsNothingToDo) {
  loop_.submit(1, requests(5));
  stop_when_idle();
  run();
  const ServedEngine::Status status = loop_.status();
  EXPECT_EQ(status.free_pages, total_pages());
  EXPECT_EQ(status.total_pages, total_pages());
  EXPECT_EQ(status.stats.running, 0);
  EXPECT_GE(status.stats.steps, 5);
}

// Requests that come and go from another thread: nothing is left, whatever the order was.
TEST_F(LoopTest, RequestsOfAnotherThread) {
  constexpr Ticket kTickets = 60;
  std::thread other([this] {
    for (Ticket ticket = 1; ticket <= kTickets; ++ticket) {
      loop_.submit(ticket, requests(1 + static_cast<int64_t>(ticket % 7),
                                    1 + static_cast<int32_t>(ticket % 3), 2));
      if (ticket % 2 == 0) {
        loop_.cancel(ticket - ticket % 4);
      }
      std::this_thread::yield();
    }
    loop_.submit(kTickets + 1, requests(1));
  });
  before_step([this](int64_t) {
    if (count(Kind::token, kTickets + 1) > 0) {
      loop_.stop();
    }
  });
  run();
  other.join();
  EXPECT_EQ(free_pages(), total_pages());
  for (Ticket ticket = 1; ticket <= kTickets; ticket += 2) {
    EXPECT_EQ(count(Kind::accepted, ticket), 1);
  }
}

}  // namespace
}  // namespace sparsellm
