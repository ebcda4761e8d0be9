// What kernels know of the sizes of records, and the shares and rings that come of it.

#include "sparse/tca_bme/format/record_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm::tca_bme {
namespace {

using sparsellm::testing::Random;

std::vector<uint32_t> totals_of(const std::vector<uint32_t>& weights) {
  std::vector<uint32_t> totals{0};
  for (uint32_t weight : weights) {
    totals.push_back(totals.back() + weight);
  }
  return totals;
}

TEST(RecordSizes, AFewLargeRecordsAreNotCommon) {
  const RecordGrid grid{.row_blocks = 16, .columns = 16};
  std::vector<uint32_t> units(256, 250);
  const auto sizes = [&] { return record_sizes(totals_of(units), grid); };
  EXPECT_EQ(sizes().largest, 4000u);
  EXPECT_EQ(sizes().common, 4000u);
  units[17] = 560;
  EXPECT_EQ(sizes().largest, 8960u);
  EXPECT_EQ(sizes().common, 4000u);
  std::fill(units.begin() + 17, units.begin() + 21, 560);  // one in 64
  EXPECT_EQ(sizes().common, 4000u);
  units[21] = 560;
  EXPECT_EQ(sizes().common, 8960u);
}

TEST(RecordSizes, RecordsThatHardlyDifferHaveOneSize) {
  std::vector<uint32_t> units(256, 256);
  units[3] = 256 + 32;
  EXPECT_EQ(record_sizes(totals_of(units), {16, 16}).common, 16u * 288);
  units[3] = 256 + 33;
  EXPECT_EQ(record_sizes(totals_of(units), {16, 16}).common, 16u * 256);
}

TEST(RecordSizes, OfNoRecords) {
  for (const RecordGrid& grid : {RecordGrid{0, 0}, RecordGrid{0, 3}, RecordGrid{3, 0}}) {
    const std::vector<uint32_t> starts{0};
    const RecordSizes sizes = record_sizes(starts, grid);
    EXPECT_EQ(sizes.largest, 0u);
    EXPECT_EQ(sizes.common, 0u);
    EXPECT_TRUE(sizes.block_starts.empty());
  }
  EXPECT_TRUE(testing::throws_error([] { record_sizes({}, {1, 1}); }, "starts"));
}

TEST(RecordSizes, RowBlocksAreKnownWhereTheyDiffer) {
  const RecordGrid grid{.row_blocks = 4, .columns = 100};
  std::vector<uint32_t> units(400, 250);
  EXPECT_TRUE(record_sizes(totals_of(units), grid).block_starts.empty());
  for (int i = 100; i < 200; ++i) {
    units[static_cast<size_t>(i)] = 260;  // 4 % more, 3 % more than the mean
  }
  EXPECT_EQ(record_sizes(totals_of(units), grid).block_starts,
            (std::vector<uint32_t>{0, 25000, 51000, 76000, 101000}));
}

TEST(Rings, HoldALargeRecordBesideCommonOnes) {
  const Ring even = ring_for(4000, 4000, 20000, 6);
  EXPECT_EQ(even.count, 4);
  EXPECT_EQ(even.bytes, 4 * 4096);
  EXPECT_FALSE(even.wide);
  const Ring roomy = ring_for(8960, 4000, 40000, 4);
  EXPECT_EQ(roomy.count, 4);
  EXPECT_EQ(roomy.bytes, 9088 + 3 * 4096);
  EXPECT_TRUE(roomy.wide);
  const Ring narrow = ring_for(8960, 4000, 17000, 6);  // less than that
  EXPECT_EQ(narrow.count, 4);
  EXPECT_EQ(narrow.bytes, 17000 / 128 * 128);
  EXPECT_EQ(ring_for(8960, 4000, 9088, 6).count, 2);
  EXPECT_EQ(ring_for(8960, 4000, 9087, 6).count, 0);
  EXPECT_EQ(ring_for(0, 0, 128, 6).count, 1);
  EXPECT_EQ(ring_for(4000, 4000, 20000, 2).count, 2);
  EXPECT_EQ(ring_for(4088, 4088, 4096, 6).count, 1);  // with 8 bytes after the values
  EXPECT_EQ(ring_for(4089, 4089, 4096, 6).count, 0);
}

TEST(Rings, AnySizes) {
  Random random(13);
  for (int i = 0; i < 100'000; ++i) {
    const auto largest = static_cast<uint32_t>(random.below(20'000));
    const auto common = static_cast<uint32_t>(random.below(int64_t{largest} + 1));
    const int64_t room = random.below(60'000);
    const int most = 1 + static_cast<int>(random.below(6));
    const Ring ring = ring_for(largest, common, room, most);
    if (ring.count == 0) {
      EXPECT_LT(room, record_room(largest));
      continue;
    }
    EXPECT_LE(ring.count, most);
    EXPECT_EQ(ring.bytes % 128, 0);
    EXPECT_LE(ring.bytes, room);
    EXPECT_GE(ring.bytes, record_room(largest));
    EXPECT_GE(ring.bytes, ring.count * record_room(common));
    EXPECT_EQ(ring.wide, record_room(largest) > record_room(common));
  }
}

// The lightest heaviest run, by trying all.
uint32_t best_of(const std::vector<uint32_t>& weights, size_t from, int parts, size_t most) {
  const size_t left = weights.size() - from;
  if (parts == 1) {
    return left > most ? UINT32_MAX
                       : std::accumulate(weights.begin() + static_cast<int64_t>(from),
                                         weights.end(), uint32_t{0});
  }
  uint32_t best = UINT32_MAX;
  uint32_t run = 0;
  for (size_t count = 1; count <= most && left >= count + static_cast<size_t>(parts) - 1; ++count) {
    run += weights[from + count - 1];
    best = std::min(best, std::max(run, best_of(weights, from + count, parts - 1, most)));
  }
  return best;
}

TEST(BalancedRuns, AreNearlyAsLightAsCanBe) {
  Random random(12);
  for (int round = 0; round < 2'000; ++round) {
    const int parts = 1 + static_cast<int>(random.below(5));
    const int most = 1 + static_cast<int>(random.below(5));
    const auto items = static_cast<size_t>(parts + random.below(parts * (most - 1) + 1));
    std::vector<uint32_t> weights(items);
    const int64_t largest = round % 3 == 0 ? 2 : 1000;
    for (uint32_t& weight : weights) {
      weight = 1 + static_cast<uint32_t>(random.below(largest));
    }
    const std::vector<uint32_t> starts = totals_of(weights);
    const std::vector<int> begins = balanced_runs(starts, parts, most);
    ASSERT_EQ(std::ssize(begins), parts + 1);
    ASSERT_EQ(begins.front(), 0);
    ASSERT_EQ(begins.back(), static_cast<int>(items));
    uint32_t heaviest = 0;
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      ASSERT_GE(begins[i + 1] - begins[i], 1);
      ASSERT_LE(begins[i + 1] - begins[i], most);
      heaviest = std::max(heaviest, starts[static_cast<size_t>(begins[i + 1])] -
                                        starts[static_cast<size_t>(begins[i])]);
    }
    const uint32_t best = best_of(weights, 0, parts, static_cast<size_t>(most));
    EXPECT_LE(heaviest, best + best / 256 + 1);
  }
}

TEST(BalancedRuns, RefusesWhatCannotBe) {
  const std::vector<uint32_t> starts{0, 5, 9};
  EXPECT_TRUE(testing::throws_error([&] { balanced_runs(starts, 3, 1); }, "2 items in 3 runs"));
  EXPECT_TRUE(testing::throws_error([&] { balanced_runs(starts, 1, 1); }, "2 items in 1 runs"));
  EXPECT_TRUE(testing::throws_error([&] { balanced_runs(starts, 0, 9); }, "2 items in 0 runs"));
}

}  // namespace
}  // namespace sparsellm::tca_bme
