// Which thread blocks multiply which slices.

#include "sparse/general_sparse/cuda/slice_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using general_sparse::ChunkGrid;
using general_sparse::scheduled_shares;
using general_sparse::ScheduledSlice;
using general_sparse::SliceSchedule;

struct ScheduledMatrix {
  general_sparse::Layout layout;
  ChunkGrid grid;
  std::vector<uint32_t> starts;

  SliceSchedule schedule(int shares) const { return slice_schedule(layout, grid, starts, shares); }
};

// Slices of up to `most` units, some of none.
ScheduledMatrix random_slices(int64_t rows, int64_t columns, int64_t most, uint64_t seed,
                              bool sorted = true) {
  testing::Random random(seed);
  const general_sparse::Layout layout{
      .panel_columns = 64, .window_rows = 64, .sorted = sorted, .interleave = 32};
  ScheduledMatrix m{.layout = layout, .grid = ChunkGrid(layout, rows, columns), .starts = {0}};
  for (int64_t i = 0; i < m.grid.slices(); ++i) {
    const int64_t units = random.below(4) == 0 ? 0 : random.below(most) + 1;
    m.starts.push_back(m.starts.back() + static_cast<uint32_t>(units));
  }
  return m;
}

// Every slice once; panels ascend in a share; fields say what they should.
void expect_valid(const ScheduledMatrix& m, const SliceSchedule& schedule, int shares) {
  ASSERT_EQ(std::ssize(schedule.share_begins), shares + 1);
  ASSERT_EQ(std::ssize(schedule.slices), m.grid.slices() + 1);
  ASSERT_EQ(schedule.share_begins.front(), 0u);
  ASSERT_EQ(schedule.share_begins.back(), m.grid.slices());
  ASSERT_TRUE(std::ranges::is_sorted(schedule.share_begins));
  std::set<uint32_t> seen;
  uint32_t units = 0;
  for (size_t share = 0; share < static_cast<size_t>(shares); ++share) {
    const size_t end = schedule.share_begins[share + 1];
    for (size_t i = schedule.share_begins[share]; i < end; ++i) {
      const ScheduledSlice& s = schedule.slices[i];
      EXPECT_TRUE(seen.insert(s.stored).second) << s.stored << " is there twice";
      EXPECT_EQ(s.units_before, units);
      const general_sparse::SlicePlace place = m.grid.slice(s.stored);
      const int64_t before = place.in_chunk * 32;  // groups of the chunk
      EXPECT_EQ(s.panel * int64_t{64}, place.chunk.first_column);
      EXPECT_EQ(s.first_unit, m.starts[s.stored]);
      EXPECT_EQ(s.first_place, place.chunk.first_place + before);
      EXPECT_EQ(s.first_group, place.chunk.first_group + (m.layout.sorted ? 0 : before));
      EXPECT_EQ(s.groups, std::min<int64_t>(32, place.chunk.groups - before));
      units += m.starts[s.stored + size_t{1}] - m.starts[s.stored];
      size_t panel_end = i + 1;
      while (panel_end < end && schedule.slices[panel_end].panel == s.panel) {
        ++panel_end;
      }
      EXPECT_EQ(s.panel_end, panel_end);
      if (i + 1 < end) {
        EXPECT_LE(s.panel, schedule.slices[i + 1].panel);
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
      for (const int64_t most : {1, 50, 1000}) {
        const ScheduledMatrix m = random_slices(
            rows, columns, most, kSeed + static_cast<uint64_t>(rows + columns), most != 50);
        for (const int shares : {1, 2, 7, 40}) {
          SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + ", " +
                       std::to_string(shares) + " shares");
          expect_valid(m, m.schedule(shares), shares);
        }
      }
    }
  }
}

TEST(SliceSchedule, WorkIsEvenWhereSlicesAreNot) {
  const ScheduledMatrix m = random_slices(30000, 64, 400, 52);
  constexpr int kShares = 132;
  const SliceSchedule schedule = m.schedule(kShares);
  uint32_t most = 0;
  for (size_t share = 0; share < kShares; ++share) {
    const auto units_at = [&](size_t i) {
      return schedule.slices[schedule.share_begins[i]].units_before;
    };
    most = std::max(most, units_at(share + 1) - units_at(share));
  }
  EXPECT_LE(most, m.starts.back() / kShares * 106 / 100);
}

// Of long slices a block may have some of two panels; those of a few units are not worth copying
// another part of x.
TEST(SliceSchedule, BlocksHaveTwoPanelsWhereThatIsWorthIt) {
  constexpr int kShares = 132;
  for (const bool is_long : {false, true}) {
    const ScheduledMatrix m = random_slices(8000, 224, is_long ? 1000 : 20, 53);
    const SliceSchedule schedule = m.schedule(kShares);
    int of_two = 0;
    uint32_t most = 0;
    for (size_t share = 0; share < kShares; ++share) {
      const uint32_t begin = schedule.share_begins[share];
      const uint32_t end = schedule.share_begins[share + 1];
      ASSERT_LT(begin, end);
      of_two += schedule.slices[begin].panel_end < end ? 1 : 0;
      most =
          std::max(most, schedule.slices[end].units_before - schedule.slices[begin].units_before);
    }
    EXPECT_LE(of_two, is_long ? 3 : 0);
    if (is_long) {
      EXPECT_GT(of_two, 0);
      EXPECT_LE(most, m.starts.back() / kShares * 112 / 100);
    }
  }
}

// In time that does not grow with the product of shares and panels.
TEST(SliceSchedule, MayHaveManyPanels) {
  const ScheduledMatrix m = random_slices(33, 64 * 20000, 3, 55);
  expect_valid(m, m.schedule(1000), 1000);
}

// As slice_product.cuh has the warps of a block share slices: every entry once, the pieces of a
// slice one after the other, of which a warp that begins with its start adds up the others.
void expect_shared_by_warps(const SliceSchedule& schedule, uint32_t first, uint32_t end,
                            int log_warps) {
  using Border = std::pair<uint32_t, uint32_t>;  // slice and part
  const auto before = [&](uint32_t slice) { return schedule.slices[slice].units_before; };
  const uint32_t warps = 1u << log_warps;
  std::vector<Border> borders{{first, 0}};
  for (uint32_t number = 1; number < warps; ++number) {
    const uint32_t unit = before(first) + general_sparse::first_unit_of_warp(
                                              before(end) - before(first), number, log_warps);
    uint32_t slice = end - 1;
    while (slice > first && before(slice) > unit) {
      --slice;
    }
    const uint32_t part =
        general_sparse::nearest_border(unit - before(slice), before(slice + 1) - before(slice));
    ASSERT_LE(part, uint32_t{general_sparse::kMostParts});
    borders.push_back(part == general_sparse::kMostParts ? Border(slice + 1, 0)
                                                         : Border(slice, part));
  }
  borders.emplace_back(end, 0);
  ASSERT_TRUE(std::ranges::is_sorted(borders));
  // As the kernel does: which part of each slice comes next, and of which slice a warp keeps sums
  // for the one that began it.
  std::vector<uint32_t> next(end - first);
  std::vector<uint32_t> begun(end - first);
  std::vector<int64_t> kept_of(warps, -1);
  for (uint32_t warp = 0; warp < warps; ++warp) {
    const auto [from, from_part] = borders[warp];
    const auto [to, to_part] = borders[warp + 1];
    kept_of[warp] = from_part > 0 ? int64_t{from} : -1;
    for (uint32_t slice = from; slice < to || (slice == to && to_part > 0); ++slice) {
      const uint32_t begin = slice == from ? from_part : 0;
      ASSERT_EQ(begin, next[slice - first]) << "slice " << slice << ", warp " << warp;
      next[slice - first] = slice == to ? to_part : uint32_t{general_sparse::kMostParts};
      begun[slice - first] += begin == 0 ? 1 : 0;
    }
  }
  for (uint32_t slice = first; slice < end; ++slice) {
    ASSERT_EQ(next[slice - first], uint32_t{general_sparse::kMostParts}) << "slice " << slice;
    ASSERT_EQ(begun[slice - first], 1u) << "slice " << slice;
  }
  // The warps that keep sums of a slice come right after the one that began it.
  for (uint32_t warp = 1; warp < warps; ++warp) {
    if (kept_of[warp] >= 0) {
      const bool goes_on = kept_of[warp - 1] == kept_of[warp];
      const bool begins = borders[warp - 1].second == 0 || borders[warp - 1].first < kept_of[warp];
      ASSERT_TRUE(goes_on || begins) << "warp " << warp;
    }
  }
  ASSERT_LT(kept_of[0], 0);
}

TEST(SliceSchedule, WarpsShareSlices) {
  for (const int64_t most : {1, 7, 60, 2000}) {
    for (const int64_t rows : {40, 300, 3000}) {
      const ScheduledMatrix m = random_slices(rows, 130, most, 56, true);
      for (const int shares : {1, 3, 40}) {
        const SliceSchedule schedule = m.schedule(shares);
        for (size_t share = 0; share < static_cast<size_t>(shares); ++share) {
          for (uint32_t first = schedule.share_begins[share];
               first < schedule.share_begins[share + 1]; first = schedule.slices[first].panel_end) {
            for (const int log_warps : {0, 2, 3, 5}) {
              expect_shared_by_warps(schedule, first, schedule.slices[first].panel_end, log_warps);
              ASSERT_FALSE(::testing::Test::HasFailure())
                  << most << " units, " << rows << " rows, " << shares << " shares, 2^" << log_warps
                  << " warps";
            }
          }
        }
      }
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
  ThreadPool threads(3);
  const std::vector<uint32_t> words = slice_schedules(m.layout, m.grid, m.starts, shares, threads);
  for (size_t i = 0; i < shares.size(); ++i) {
    const general_sparse::SchedulePlace place =
        general_sparse::schedule_place(shares, m.grid.slices(), i);
    EXPECT_EQ(place.slices % 4, 0) << "loads are of 16 bytes";
    const SliceSchedule expected = m.schedule(shares[i]);
    ASSERT_TRUE(std::equal(expected.share_begins.begin(), expected.share_begins.end(),
                           words.begin() + place.share_begins));
    for (size_t s = 0; s < expected.slices.size(); ++s) {
      const uint32_t* const got = words.data() + place.slices + 8 * static_cast<int64_t>(s);
      EXPECT_EQ(std::memcmp(got, &expected.slices[s], sizeof(ScheduledSlice)), 0);
    }
  }
}

}  // namespace
}  // namespace sparsellm
