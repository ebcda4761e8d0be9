// The tuner on a made-up device, whose plans are right, wrong or refused, and take the time that a
// test says.

#include "kernels/tune/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kRows = 2;
constexpr int64_t kColumns = 3;

// What a plan does, and the seconds of its measurements, of which the last stands for all further.
struct Behaviour {
  enum class Result { right, rounded, wrong, nan, unwritten, refused, no_memory, device_lost };
  Result result = Result::right;
  std::vector<double> seconds{1.0};
};
using Result = Behaviour::Result;

struct Plan {
  int number = 0;
  bool operator==(const Plan&) const = default;
};

class Calls : public Tunable<Plan> {
 public:
  Calls(std::initializer_list<Behaviour> all) : behaviours(all) {}

  std::string key() const override { return name; }
  std::vector<Plan> candidates() const override {
    ++asked_for_candidates;
    std::vector<Plan> plans;
    plans.reserve(behaviours.size());
    for (int i = 0; i < std::ssize(behaviours); ++i) {
      plans.push_back({i});
    }
    return plans;
  }
  bool fits_all(const Plan& plan) const override {
    return plan.number < std::ssize(behaviours) &&
           std::find(unfit.begin(), unfit.end(), plan.number) == unfit.end();
  }
  Plan fallback() const override { return {-1}; }

  // Rows with a gap behind them.
  Tensor result() const override {
    return Tensor(memory.data(), DType::f32, {kRows, kColumns + 1}, Device()).columns(0, kColumns);
  }
  void run_reference(const Tensor& expected) override { write(expected, 0.0f); }
  void run(const Plan& plan, int64_t turn) override {
    last = plan.number;
    turns.push_back(turn);
    switch (behaviours[static_cast<size_t>(plan.number)].result) {
      case Result::right:
        return write(result(), 0.0f);
      case Result::rounded:
        return write(result(), 1e-4f);
      case Result::wrong:
        return write(result(), 0.1f);
      case Result::nan:
        return write(result(), kNan);
      case Result::unwritten:
        return write(result().rows(0, 1), 0.0f);
      case Result::refused:
        fail("no such launch");
      case Result::no_memory:
        throw OutOfMemory("no memory");
      case Result::device_lost:
        throw DeviceLost("gone");
    }
  }
  int64_t bytes_in_turn() const override { return 1234; }
  void timed(const Plan& plan, double seconds) override {
    EXPECT_EQ(plan.number, last) << "as soon as it is measured";
    heard.emplace_back(plan.number, seconds);
  }
  bool times_slow_ones() const override { return slow_ones; }

  std::string to_text(const Plan& plan) const override {
    return fmt::format("plan {}", plan.number);
  }
  std::optional<Plan> plan_from(std::string_view text) const override {
    constexpr std::string_view kPlan = "plan ";
    Plan plan;
    const bool is_plan =
        text.starts_with(kPlan) &&
        std::from_chars(text.data() + kPlan.size(), text.data() + text.size(), plan.number).ec ==
            std::errc();
    return is_plan ? std::optional(plan) : std::nullopt;
  }

  double next_seconds() {
    const std::vector<double>& seconds = behaviours[static_cast<size_t>(last)].seconds;
    const size_t index = std::min(measured[last]++, seconds.size() - 1);
    return seconds[index];
  }

  std::string name = "calls";
  std::vector<Behaviour> behaviours;
  std::vector<int> unfit;  // for some weight
  mutable std::vector<float> memory = std::vector<float>(kRows * (kColumns + 1), 7.0f);
  mutable int asked_for_candidates = 0;
  int last = -1;                   // that ran
  std::map<int, size_t> measured;  // how often, by plan
  std::vector<int64_t> turns;
  bool slow_ones = false;
  std::vector<std::pair<int, double>> heard;  // by timed()

 private:
  static void write(const Tensor& y, float error) {
    for (int64_t row = 0; row < y.size(0); ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        y.row<float>(row)[column] = static_cast<float>(row + column - 1) + error;
      }
    }
  }
};

class Meter : public TuneMeter {
 public:
  explicit Meter(Calls& calls) : calls_(calls) {}

  std::string device_key() override { return device; }
  void poison(const Tensor& y) override {
    for (int64_t row = 0; row < y.size(0); ++row) {
      std::fill_n(y.row<float>(row), y.size(1), kNan);
    }
  }
  Largest compare(const Tensor& a, const Tensor& b) override {
    Largest largest;
    for (int64_t row = 0; row < a.size(0); ++row) {
      for (int64_t column = 0; column < a.size(1); ++column) {
        const float expected = a.row<float>(row)[column];
        const float difference = std::abs(expected - b.row<float>(row)[column]);
        largest.difference = difference <= largest.difference ? largest.difference : difference;
        largest.value = std::max(largest.value, std::abs(expected));
        if (std::isnan(largest.difference)) {
          return largest;
        }
      }
    }
    return largest;
  }
  std::optional<double> seconds(const Call& call, double best) override {
    EXPECT_EQ(call.tokens, kRows);
    EXPECT_EQ(call.bytes_in_turn, 1234);
    call.enqueue();
    order.push_back(calls_.last);
    const double seconds = calls_.next_seconds();
    return seconds > 1.5 * best ? std::nullopt : std::optional(seconds);
  }

  std::string device = "a device";
  std::vector<int> order;  // of the plans that were measured

 private:
  Calls& calls_;
};

class TunerTest : public ::testing::Test {
 protected:
  Tuned<Plan> fastest(Calls& calls) {
    Meter meter(calls);
    meter.device = device;
    const Tuned<Plan> tuned = Tuner(meter, cache, ctx).fastest(calls);
    order = meter.order;
    return tuned;
  }
  Tuned<Plan> first_right(Calls& calls) {
    Meter meter(calls);
    const Tuned<Plan> tuned = Tuner(meter, cache, ctx).first_right(calls);
    order = meter.order;
    return tuned;
  }

  Workspace workspace{Device(), 0};
  ThreadPool threads{1};
  ExecContext ctx{.device = Device(), .workspace = workspace, .threads = threads};
  TuneCache cache;
  std::string device = "a device";
  std::vector<int> order;
};

TEST_F(TunerTest, TheFastestIsChosen) {
  Calls calls{{.seconds = {3.0}}, {.seconds = {1.0}}, {.seconds = {2.0}}};
  const Tuned<Plan> tuned = fastest(calls);
  EXPECT_EQ(tuned.plan.number, 1);
  EXPECT_DOUBLE_EQ(tuned.seconds, 1.0);
  EXPECT_TRUE(tuned.measured);
}

TEST_F(TunerTest, OfEqualsTheBestGuessIsChosen) {
  Calls calls{{.seconds = {1.0}}, {.seconds = {1.0}}, {.seconds = {1.0}}};
  EXPECT_EQ(fastest(calls).plan.number, 0);
}

TEST_F(TunerTest, WhatIsWrongIsNeitherTimedNorChosen) {
  for (const Result wrong : {Result::wrong, Result::nan, Result::unwritten, Result::refused}) {
    cache = TuneCache();
    Calls calls{{.result = wrong, .seconds = {0.1}}, {.seconds = {1.0}}};
    EXPECT_EQ(fastest(calls).plan.number, 1);
    EXPECT_EQ(order, std::vector<int>{1});
  }
  // What is right before it leaves its result, which is not taken for that of the next.
  Calls calls{{.seconds = {1.0}}, {.result = Result::unwritten, .seconds = {0.1}}};
  calls.name = "others";
  EXPECT_EQ(fastest(calls).plan.number, 0);
}

TEST_F(TunerTest, ARoundedResultIsRight) {
  Calls calls{{.result = Result::rounded, .seconds = {0.1}}, {.seconds = {1.0}}};
  EXPECT_EQ(fastest(calls).plan.number, 0);
}

TEST(IsRightResult, DependsOnTheDTypeAndNeverPassesNan) {
  EXPECT_TRUE(is_right_result({.difference = 0.0f, .value = 0.0f}, DType::f16));
  EXPECT_TRUE(is_right_result({.difference = 0x1p-9f, .value = 1.0f}, DType::f16));
  EXPECT_FALSE(is_right_result({.difference = 0x1.1p-9f, .value = 1.0f}, DType::f16));
  EXPECT_TRUE(is_right_result({.difference = 0x1p-6f, .value = 1.0f}, DType::bf16));
  EXPECT_FALSE(is_right_result({.difference = 0x1p-9f, .value = 1.0f}, DType::f32));
  EXPECT_FALSE(is_right_result({.difference = kNan, .value = 1.0f}, DType::f16));
  EXPECT_FALSE(is_right_result({.difference = 0.0f, .value = kNan}, DType::f16));
}

TEST_F(TunerTest, WhatDoesNotFitAllWeightsIsNeverRun) {
  Calls calls{{.result = Result::device_lost, .seconds = {0.1}}, {.seconds = {1.0}}};
  calls.unfit = {0};
  EXPECT_EQ(fastest(calls).plan.number, 1);
}

TEST_F(TunerTest, OutOfMemoryAndALostDeviceAreErrors) {
  Calls no_memory{{.result = Result::no_memory}, {}};
  EXPECT_THROW(fastest(no_memory), OutOfMemory);
  Calls lost{{.result = Result::device_lost}, {}};
  EXPECT_THROW(fastest(lost), DeviceLost);
}

// Four, by turns, and the mean of these measurements decides.
TEST_F(TunerTest, TheFastestAreMeasuredAgainByTurns) {
  Calls calls{{.seconds = {1.0, 3.0}}, {.seconds = {1.1, 2.0, 1.0, 3.0}},
              {.seconds = {1.4}},      {.seconds = {1.2, 4.0}},
              {.seconds = {1.3, 5.0}}, {.result = Result::wrong}};
  const Tuned<Plan> tuned = fastest(calls);
  EXPECT_EQ(tuned.plan.number, 1);
  EXPECT_DOUBLE_EQ(tuned.seconds, 2.0);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 0, 1, 3, 4, 0, 1, 3, 4, 0, 1, 3, 4}));
}

TEST_F(TunerTest, OneAloneIsMeasuredOnce) {
  Calls calls{{.result = Result::wrong}, {.seconds = {2.0, 9.0}}, {.seconds = {4.0}}};
  const Tuned<Plan> tuned = fastest(calls);  // the last is far slower
  EXPECT_EQ(tuned.plan.number, 1);
  EXPECT_DOUBLE_EQ(tuned.seconds, 2.0);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

using Times = std::vector<std::pair<int, double>>;

// Of each that is right, once: not what the fastest take when they are measured again.
TEST_F(TunerTest, TimesAreToldAsTheyAreMeasured) {
  Calls calls{{.seconds = {3.0, 8.0}}, {.result = Result::wrong, .seconds = {0.1}},
              {.seconds = {2.0, 9.0}}, {.result = Result::refused, .seconds = {0.1}},
              {.seconds = {0.1}},  // of which a weight takes none
              {.seconds = {3.1}},  // far slower than the best so far
              {.seconds = {2.5}}};
  calls.unfit = {4};
  EXPECT_EQ(fastest(calls).plan.number, 6);
  EXPECT_EQ(calls.heard, (Times{{0, 3.0}, {2, 2.0}, {6, 2.5}}));
  EXPECT_FALSE(fastest(calls).measured);  // but found
  EXPECT_EQ(calls.heard.size(), 3u);
}

TEST_F(TunerTest, SlowOnesAreMeasuredWhereTheyAreAskedFor) {
  Calls calls{{.seconds = {1.0}}, {.seconds = {7.0}}, {.result = Result::nan}, {.seconds = {90.0}}};
  calls.slow_ones = true;
  EXPECT_EQ(fastest(calls).plan.number, 0);
  EXPECT_EQ(calls.heard, (Times{{0, 1.0}, {1, 7.0}, {3, 90.0}}));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 3, 0, 1, 3, 0, 1, 3, 0, 1, 3}));
  calls.slow_ones = false;
  calls.name = "others";
  calls.heard.clear();
  EXPECT_EQ(fastest(calls).plan.number, 0);
  EXPECT_EQ(calls.heard, (Times{{0, 1.0}}));
}

TEST_F(TunerTest, ResultsAreOfTheFirstWeightAndTimesOfAllInTurn) {
  Calls calls{{}, {}};
  fastest(calls);
  EXPECT_EQ(calls.turns, (std::vector<int64_t>{0, 0, 0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(TunerTest, WhatWasFoundIsKeptWithItsTime) {
  Calls calls{{.seconds = {3e-6}}, {.seconds = {12.3456e-6}}};
  EXPECT_TRUE(fastest(calls).measured);
  EXPECT_EQ(cache.find("calls, a device"), "3.000 us: plan 0");
  const int asked = calls.asked_for_candidates;
  const Tuned<Plan> again = fastest(calls);
  EXPECT_EQ(again.plan.number, 0);
  EXPECT_DOUBLE_EQ(again.seconds, 3e-6);
  EXPECT_FALSE(again.measured);
  EXPECT_EQ(calls.asked_for_candidates, asked);
  EXPECT_TRUE(order.empty());
}

TEST_F(TunerTest, OtherKeysAndDevicesAreMeasuredForThemselves) {
  Calls calls{{}};
  EXPECT_TRUE(fastest(calls).measured);
  device = "another device";
  EXPECT_TRUE(fastest(calls).measured);
  EXPECT_FALSE(fastest(calls).measured);
  calls.name = "other calls";
  EXPECT_TRUE(fastest(calls).measured);
}

TEST_F(TunerTest, WhatIsKeptButCannotBeTakenIsMeasuredAgain) {
  for (const char* text :
       {"", "plan 0", "1.000 us: ", "1.000 us: nonsense", "1.000 us: plan 7", "1.000 us: plan 1",
        "0.000 us: plan 0", "-1 us: plan 0", "inf us: plan 0", "nan us: plan 0", "x us: plan 0",
        "1.000 ms: plan 0"}) {
    cache = TuneCache();
    cache.put("calls, a device", text);
    Calls calls{{.seconds = {2e-6}}, {.seconds = {1e-6}}};
    calls.unfit = {1};
    const Tuned<Plan> tuned = fastest(calls);
    EXPECT_TRUE(tuned.measured) << text;
    EXPECT_EQ(tuned.plan.number, 0) << text;
    EXPECT_EQ(cache.find("calls, a device"), "2.000 us: plan 0");
  }
}

TEST_F(TunerTest, WhereNothingIsRightTheFallbackIsTakenAndNotKept) {
  Calls calls{{.result = Result::wrong}, {.result = Result::refused}};
  for (int load = 0; load < 2; ++load) {
    const Tuned<Plan> tuned = fastest(calls);
    EXPECT_EQ(tuned.plan.number, -1);
    EXPECT_EQ(tuned.seconds, 0.0);
    EXPECT_TRUE(tuned.measured);
  }
  EXPECT_FALSE(cache.find("calls, a device"));
  EXPECT_EQ(first_right(calls).plan.number, -1);
}

TEST_F(TunerTest, TheFirstThatIsRightIsTakenWhateverItsTime) {
  Calls calls{{.result = Result::wrong, .seconds = {1e-6}},
              {.seconds = {1e-6}},
              {.seconds = {9e-6}},
              {.seconds = {1e-6}}};
  calls.unfit = {1};
  const Tuned<Plan> tuned = first_right(calls);
  EXPECT_EQ(tuned.plan.number, 2);
  EXPECT_EQ(order, std::vector<int>{2});
  EXPECT_EQ(cache.find("calls, a device"), "9.000 us: plan 2");
  EXPECT_FALSE(first_right(calls).measured);
  calls.unfit = {1, 2};
  EXPECT_EQ(first_right(calls).plan.number, 3);
}

TEST_F(TunerTest, AFileKeepsWhatWasFound) {
  const testing::TempDir dir;
  Calls calls{{.seconds = {5e-6}}};
  cache = TuneCache(dir.path() / "tuned.json");
  EXPECT_TRUE(fastest(calls).measured);
  cache.save();
  cache = TuneCache(dir.path() / "tuned.json");
  EXPECT_DOUBLE_EQ(fastest(calls).seconds, 5e-6);
}

}  // namespace
}  // namespace sparsellm
