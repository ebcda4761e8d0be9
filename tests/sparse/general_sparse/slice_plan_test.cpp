// Which thread blocks multiply which slices.

#include "sparse/general_sparse/cuda/slice_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using general_sparse::ChunkGrid;
using general_sparse::scheduled_shares;
using general_sparse::ScheduledSlice;
using general_sparse::SliceSchedule;

struct ScheduledMatrix {
  ChunkGrid grid;
  std::vector<uint32_t> starts;
  int64_t panel_slices = 0;
};

// Slices of up to `most` units, some of none.
ScheduledMatrix random_slices(int64_t rows, int64_t columns, int64_t most, uint64_t seed) {
  testing::Random random(seed);
  const general_sparse::Layout layout{
      .panel_columns = 64, .window_rows = 64, .sorted = true, .interleave = 32};
  ScheduledMatrix m{.grid = ChunkGrid(layout, rows, columns), .starts = {0}};
  for (int64_t i = 0; i < m.grid.slices(); ++i) {
    const int64_t units = random.below(4) == 0 ? 0 : random.below(most) + 1;
    m.starts.push_back(m.starts.back() + static_cast<uint32_t>(units));
  }
  m.panel_slices = m.grid.slices() / m.grid.panels();
  return m;
}

// Every slice once; panels ascend in a share; fields say what they should.
void expect_valid(const ScheduledMatrix& m, const SliceSchedule& schedule, int shares) {
  ASSERT_EQ(std::ssize(schedule.share_begins), shares + 1);
  ASSERT_EQ(std::ssize(schedule.slices), m.grid.slices() + 1);
  ASSERT_EQ(schedule.share_begins.front(), 0u);
  ASSERT_EQ(schedule.share_begins.back(), m.grid.slices());
  ASSERT_TRUE(std::ranges::is_sorted(schedule.share_begins));
  const auto panel_of = [&](size_t i) { return schedule.slices[i].slice / m.panel_slices; };
  std::set<uint32_t> seen;
  uint32_t units = 0;
  for (size_t share = 0; share < static_cast<size_t>(shares); ++share) {
    const size_t end = schedule.share_begins[share + 1];
    for (size_t i = schedule.share_begins[share]; i < end; ++i) {
      const ScheduledSlice& s = schedule.slices[i];
      EXPECT_TRUE(seen.insert(s.slice).second) << s.slice << " is there twice";
      EXPECT_EQ(s.units_before, units);
      // The number counts panel after panel, window after window: as stored it is another one.
      const auto panel = static_cast<int64_t>(s.slice) / m.panel_slices;
      const auto in_panel = static_cast<int64_t>(s.slice) % m.panel_slices;
      const int64_t window_slices = m.grid.window_groups() / 32;
      const general_sparse::Chunk chunk = m.grid.chunk(in_panel / window_slices, panel);
      const auto stored = static_cast<size_t>(chunk.first_slice + in_panel % window_slices);
      EXPECT_EQ(s.first_unit, m.starts[stored]);
      units += m.starts[stored + 1] - m.starts[stored];
      size_t panel_end = i + 1;
      while (panel_end < end && panel_of(panel_end) == panel_of(i)) {
        ++panel_end;
      }
      EXPECT_EQ(s.panel_end, panel_end);
      if (i + 1 < end) {
        EXPECT_LE(panel_of(i), panel_of(i + 1));
      }
    }
  }
  EXPECT_EQ(schedule.slices.back().units_before, units);
  EXPECT_EQ(units, m.starts.back());
}

TEST(SliceSchedule, HasEverySliceOnce) {
  constexpr uint64_t kSeed = 51;
  for (const int64_t rows : {1, 33, 1000}) {
    for (const int64_t columns : {1, 64, 200}) {
      const ScheduledMatrix m =
          random_slices(rows, columns, 50, kSeed + static_cast<uint64_t>(rows + columns));
      for (const int shares : {1, 2, 7, 40}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + ", " +
                     std::to_string(shares) + " shares");
        expect_valid(m, slice_schedule(m.grid, m.starts, shares), shares);
      }
    }
  }
}

TEST(SliceSchedule, WorkIsEvenWhereSlicesAreNot) {
  const ScheduledMatrix m = random_slices(30000, 64, 400, 52);
  constexpr int kShares = 132;
  const SliceSchedule schedule = slice_schedule(m.grid, m.starts, kShares);
  uint32_t most = 0;
  for (size_t share = 0; share < kShares; ++share) {
    const auto units_at = [&](size_t i) {
      return schedule.slices[schedule.share_begins[i]].units_before;
    };
    most = std::max(most, units_at(share + 1) - units_at(share));
  }
  EXPECT_LE(most, m.starts.back() / kShares * 106 / 100);
}

TEST(SliceSchedule, BlocksHaveOnePanelWhereThereAreManyOfThem) {
  const ScheduledMatrix m = random_slices(4000, 224, 100, 53);
  constexpr int kShares = 132;
  const SliceSchedule schedule = slice_schedule(m.grid, m.starts, kShares);
  for (size_t share = 0; share < kShares; ++share) {
    const uint32_t begin = schedule.share_begins[share];
    const uint32_t end = schedule.share_begins[share + 1];
    if (begin < end) {
      EXPECT_EQ(schedule.slices[begin].panel_end, end);
    }
  }
}

TEST(SliceSchedule, SharesAscendFromOne) {
  for (const int multiprocessors : {1, 10, 132}) {
    for (const int64_t slices : {0, 1, 128, 5000}) {
      const std::vector<int> shares = scheduled_shares(multiprocessors, slices);
      EXPECT_EQ(shares.front(), 1);
      EXPECT_TRUE(std::ranges::is_sorted(shares, std::less_equal()));
      EXPECT_LE(shares.back(), std::max<int64_t>(slices, 1));
      EXPECT_EQ(shares.back(), std::clamp<int64_t>(slices, 1, 8 * multiprocessors));
    }
  }
}

TEST(SliceSchedule, SchedulesAreOneAfterTheOther) {
  const ScheduledMatrix m = random_slices(500, 200, 50, 54);
  const std::vector<int> shares = scheduled_shares(6, m.grid.slices());
  const std::vector<uint32_t> words = slice_schedules(m.grid, m.starts, shares);
  for (size_t i = 0; i < shares.size(); ++i) {
    const general_sparse::SchedulePlace place =
        general_sparse::schedule_place(shares, m.grid.slices(), i);
    EXPECT_EQ(place.slices % 4, 0) << "loads are of 16 bytes";
    const SliceSchedule expected = slice_schedule(m.grid, m.starts, shares[i]);
    ASSERT_TRUE(std::equal(expected.share_begins.begin(), expected.share_begins.end(),
                           words.begin() + place.share_begins));
    for (size_t s = 0; s < expected.slices.size(); ++s) {
      const uint32_t* const got = words.data() + place.slices + 4 * static_cast<int64_t>(s);
      EXPECT_EQ(got[0], expected.slices[s].slice);
      EXPECT_EQ(got[1], expected.slices[s].units_before);
      EXPECT_EQ(got[2], expected.slices[s].first_unit);
      EXPECT_EQ(got[3], expected.slices[s].panel_end);
    }
  }
}

}  // namespace
}  // namespace sparsellm
