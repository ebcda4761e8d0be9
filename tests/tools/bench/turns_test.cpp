// Products measured by turns: which one counts as faster.

#include "tools/bench/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "tests/testing/throws_error.h"
#include "tools/bench/call_timer.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// Interquartile range 2, median `middle`.
std::vector<double> around(double middle) {
  return {middle + 2.0, middle - 1.0, middle, middle + 1.0, middle - 2.0};
}

std::vector<double> all_the_same(double value) { return {value, value, value}; }

TEST(Turns, MediansAndWhatTheyComeTo) {
  const Turns turns = compare_turns(around(10.0), around(25.0));
  EXPECT_EQ(turns.time.median, 10.0);
  EXPECT_EQ(turns.time.min, 8.0);
  EXPECT_EQ(turns.time.max, 12.0);
  EXPECT_EQ(turns.baseline.median, 25.0);
  EXPECT_EQ(turns.speedup(), 2.5);
  EXPECT_EQ(turns.verdict, Verdict::faster);
  const Turns micro = scaled(turns, 1e6);
  EXPECT_EQ(micro.time.median, 10e6);
  EXPECT_EQ(micro.baseline.max, 27e6);
  EXPECT_EQ(micro.speedup(), 2.5);
  EXPECT_EQ(micro.verdict, Verdict::faster);
}

TEST(Turns, EqualWithinTheLargerInterquartileRange) {
  struct Case {
    std::vector<double> times;
    std::vector<double> baseline;
    Verdict verdict;
  };
  const double kStep = 0x1p-20;
  for (const Case& c : {
           Case{around(10.0), around(10.0), Verdict::equal},
           Case{around(10.0), around(12.0), Verdict::equal},
           Case{around(12.0), around(10.0), Verdict::equal},
           Case{around(10.0), around(12.0 + kStep), Verdict::faster},
           Case{around(12.0 + kStep), around(10.0), Verdict::slower},
           // Either of the two may be the one that varies.
           Case{around(10.0), all_the_same(12.0), Verdict::equal},
           Case{all_the_same(10.0), around(12.0), Verdict::equal},
           Case{all_the_same(10.0), around(12.0 + kStep), Verdict::faster},
           Case{all_the_same(10.0), all_the_same(10.0), Verdict::equal},
           Case{all_the_same(10.0), all_the_same(10.0 + kStep), Verdict::faster},
           // A single outlier is none of the quarters.
           Case{{10.0, 10.0, 10.0, 10.0, 90.0}, all_the_same(11.0), Verdict::faster},
           Case{all_the_same(11.0), {10.0, 10.0, 10.0, 10.0, 0.0}, Verdict::slower},
           // One round says nothing about a spread.
           Case{{10.0}, {10.0}, Verdict::equal},
           Case{{10.0}, {11.0}, Verdict::faster},
       }) {
    EXPECT_EQ(compare_turns(c.times, c.baseline).verdict, c.verdict)
        << c.times.front() << " " << c.baseline.front();
    // Seen from the other side.
    const Verdict other = c.verdict == Verdict::equal    ? Verdict::equal
                          : c.verdict == Verdict::faster ? Verdict::slower
                                                         : Verdict::faster;
    EXPECT_EQ(compare_turns(c.baseline, c.times).verdict, other);
    // The order of the rounds does not matter.
    std::vector<double> reversed = c.times;
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_EQ(compare_turns(reversed, c.baseline).verdict, c.verdict);
  }
  EXPECT_TRUE(throws_error([] { compare_turns({}, {1.0}); }, "no values"));
  EXPECT_TRUE(throws_error([] { compare_turns({1.0}, {}); }, "no values"));
}

TEST(Turns, VerdictsHaveNames) {
  EXPECT_EQ(name_of(Verdict::slower), "slower");
  EXPECT_EQ(name_of(Verdict::equal), "equal");
  EXPECT_EQ(name_of(Verdict::faster), "faster");
  EXPECT_EQ(std::get<std::string>(verdict_cell(Verdict::equal)), "equal");
  EXPECT_TRUE(std::holds_alternative<NoValue>(verdict_cell({})));
}

TEST(CallTimer, WorksTakeTurns) {
  // (work, piece) of every call, and the number of calls of each work.
  std::vector<int64_t> pieces[2];
  std::vector<int64_t> order;  // works, each as often as it came without the other between
  const auto work = [&](int64_t which, int64_t count) {
    return TimedWork{.pieces = count, .run = [&pieces, &order, which](int64_t piece) {
                       pieces[which].push_back(piece);
                       if (order.empty() || order.back() != which) {
                         order.push_back(which);
                       }
                     }};
  };
  const TimedWork works[] = {work(0, 3), work(1, 5)};
  const std::vector<std::vector<double>> seconds = time_calls_by_turns(works, 4);
  ASSERT_EQ(seconds.size(), 2u);
  for (size_t which = 0; which < 2; ++which) {
    EXPECT_EQ(seconds[which].size(), 4u);
    EXPECT_GT(*std::min_element(seconds[which].begin(), seconds[which].end()), 0.0);
    for (size_t i = 0; i < pieces[which].size(); ++i) {
      ASSERT_EQ(pieces[which][i], static_cast<int64_t>(i) % works[which].pieces);
    }
  }
  // Warm-up of each, then four rounds.
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_TRUE(throws_error([&] { time_calls_by_turns(works, 0); }, "0 stretches"));
}

// One that takes longer than a stretch is called once in each, and its time is that of a call.
TEST(CallTimer, ALongCallIsAStretch) {
  int calls = 0;
  const TimedWork work{.pieces = 1, .run = [&](int64_t) {
                         ++calls;
                         std::this_thread::sleep_for(std::chrono::milliseconds(5));
                       }};
  const std::vector<double> seconds = time_calls_by_turns({&work, 1}, 3).front();
  EXPECT_EQ(calls, 1 + 3) << "a warm-up, and three stretches";
  EXPECT_GE(*std::min_element(seconds.begin(), seconds.end()), 5e-3);
}

}  // namespace
}  // namespace sparsellm
