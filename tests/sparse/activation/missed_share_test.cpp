#include "sparse/activation/missed_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The search, and the shares that it tried.
struct Search {
  std::vector<double> tried;
  std::optional<MissedShare> best;
};

template <class Loss>
Search run(const MissedShareSearch& search, Loss&& loss) {
  Search result;
  result.best = largest_missed_share(search, [&](double share) {
    result.tried.push_back(share);
    return loss(share);
  });
  return result;
}

TEST(MissedShare, ComesCloseToTheLimit) {
  for (const double wanted : {0.00015, 0.003, 0.04, 0.5, 0.98}) {
    const Search search =
        run({.max_loss = 0.005}, [&](double share) { return 0.005 * share / wanted; });
    EXPECT_EQ(search.tried.size(), 10u);
    ASSERT_TRUE(search.best) << wanted;
    EXPECT_LE(search.best->share, wanted);
    EXPECT_GT(search.best->share, wanted / 1.01);
    EXPECT_EQ(search.best->loss, 0.005 * search.best->share / wanted);
    EXPECT_LE(search.best->loss, 0.005);
  }
}

TEST(MissedShare, IsTheLargestThatWasMeasuredWithinTheLimit) {
  for (const int evaluations : {1, 2, 3, 10}) {
    const Search search = run({.max_loss = 0.01, .evaluations = evaluations},
                              [](double share) { return share * share; });
    ASSERT_EQ(search.tried.size(), static_cast<size_t>(evaluations));
    EXPECT_DOUBLE_EQ(search.tried.front(), 0.01);
    ASSERT_TRUE(search.best);
    double largest = 0.0;
    for (double share : search.tried) {
      if (share * share <= 0.01) {
        largest = std::max(largest, share);
      }
    }
    EXPECT_EQ(search.best->share, largest);
  }
}

TEST(MissedShare, ALossBelowZeroAndOneOfTheLimitAreWithinIt) {
  for (const double loss : {-0.1, 0.0, 0.005}) {
    const Search search = run({.max_loss = 0.005}, [&](double) { return loss; });
    ASSERT_TRUE(search.best);
    EXPECT_EQ(search.best->loss, loss);
    EXPECT_GT(search.best->share, 0.99);
    EXPECT_LE(search.best->share, 1.0);
  }
}

TEST(MissedShare, WithoutAValueWhereNoneIsWithinTheLimit) {
  for (const double loss : {0.0051, kInfinity, -kInfinity, kNaN}) {
    const Search search = run({.max_loss = 0.005}, [&](double) { return loss; });
    EXPECT_FALSE(search.best) << loss;
    EXPECT_EQ(search.tried.size(), 10u);
    EXPECT_LT(search.tried.back(), 1.01e-4);
    EXPECT_GT(search.tried.back(), 1e-4);
  }
}

TEST(MissedShare, LossesThatAreNotNumbersAreTooMuch) {
  for (const double bad : {kNaN, kInfinity}) {
    const Search search =
        run({.max_loss = 0.005}, [&](double share) { return share > 0.02 ? bad : 0.0; });
    ASSERT_TRUE(search.best);
    EXPECT_LE(search.best->share, 0.02);
    EXPECT_GT(search.best->share, 0.0198);
  }
}

TEST(MissedShare, SearchesItsRange) {
  const Search search =
      run({.evaluations = 5, .smallest = 0.1, .largest = 0.4}, [](double) { return 1.0; });
  EXPECT_DOUBLE_EQ(search.tried.front(), 0.2);
  EXPECT_TRUE(std::ranges::all_of(search.tried, [](double share) { return share > 0.1; }));
}

TEST(MissedShare, RefusesSettingsOutOfRange) {
  const auto refuses = [](const MissedShareSearch& search, std::string_view why) {
    EXPECT_TRUE(
        throws_error([&] { largest_missed_share(search, [](double) { return 0.0; }); }, why));
  };
  for (const double loss : {-0.1, kInfinity, kNaN}) {
    refuses({.max_loss = loss}, "the largest loss is ");
  }
  refuses({.evaluations = 0}, "a search with 0 evaluations; use at least 1");
  refuses({.smallest = 0.0}, "shares from 0 to 1 are searched");
  refuses({.smallest = 0.5, .largest = 0.5}, "expected 0 < smallest < largest <= 1");
  refuses({.largest = 1.5}, "shares from 0.0001 to 1.5");
  refuses({.largest = kNaN}, "to nan");
}

TEST(MissedShare, PassesExceptionsOn) {
  EXPECT_THROW(run({}, [](double) -> double { throw std::runtime_error("enough"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace sparsellm
