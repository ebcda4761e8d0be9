// The memory that ranks write to, and which way a message takes.

#include "kernels/base/comm_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace sparsellm {
namespace {

TEST(CommPlan, SlotsLieOneAfterTheOtherAndAreAligned) {
  for (int ranks = 2; ranks <= CommLayout::kMaxRanks; ++ranks) {
    const CommLayout layout = CommLayout::of(ranks);
    int64_t end = CommLayout::kControlBytes;
    for (const CommSlots& slots : {layout.packets, layout.tiles}) {
      EXPECT_EQ(slots.offset, end);
      EXPECT_GT(slots.slot_units, 0);
      EXPECT_EQ(slots.slot_units % 2, 0);
      EXPECT_EQ(slots.slot_bytes % 128, 0);
      EXPECT_EQ(slots.offset % 128, 0);
      end += CommLayout::kTurns * (ranks - 1) * slots.slot_bytes;
    }
    EXPECT_EQ(layout.packets.slot_bytes, layout.packets.slot_units * kPacketUnit.wire_bytes);
    EXPECT_EQ(layout.tiles.slot_bytes, layout.tiles.slot_units * kTileUnit.wire_bytes);
    if (ranks == 2) {
      EXPECT_EQ(layout.deferred_offset, end);
      end += CommLayout::kDeferredSlots * layout.deferred_bytes;
    } else {
      EXPECT_EQ(layout.deferred_bytes, 0);
    }
    EXPECT_LE(end, layout.bytes);
    EXPECT_LE(layout.bytes, int64_t{ranks == 2 ? 128 : 48} << 20);
  }
  EXPECT_LE(CommLayout::kDoneOffset + int64_t{sizeof(uint32_t)}, CommLayout::kControlBytes);
}

// Shares of two shots, as kernels cut them, fit in half a slot.
TEST(CommPlan, ACallFitsInItsSlots) {
  for (int ranks = 2; ranks <= CommLayout::kMaxRanks; ++ranks) {
    const CommLayout layout = CommLayout::of(ranks);
    for (const CommWay way : kCommWays) {
      if (way == CommWay::nccl) {
        continue;
      }
      const CommUnit& unit = is_packets(way) ? kPacketUnit : kTileUnit;
      const CommSlots& slots = is_packets(way) ? layout.packets : layout.tiles;
      const int64_t bytes = bytes_of_call(way, layout, ranks);
      EXPECT_EQ(bytes % 16, 0);
      const int64_t units = comm_units(bytes, unit);
      if (!is_two_shot(way)) {
        EXPECT_EQ(units, slots.slot_units);
        continue;
      }
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_LE(units * (rank + 1) / ranks - units * rank / ranks, slots.slot_units / 2);
      }
    }
  }
}

TEST(CommPlan, UnitsAreCountedUp) {
  EXPECT_EQ(comm_units(0, kPacketUnit), 1);
  EXPECT_EQ(comm_units(1, kPacketUnit), 1);
  EXPECT_EQ(comm_units(1536, kPacketUnit), 1);
  EXPECT_EQ(comm_units(1537, kPacketUnit), 2);
}

TEST(CommPlan, TheWayDependsOnTheBytes) {
  const CommLimits limits{.two_shot_from = 1000, .tiles_from = 2000, .nccl_from = 3000};
  EXPECT_EQ(limits.way(1), CommWay::one_shot_packets);
  EXPECT_EQ(limits.way(999), CommWay::one_shot_packets);
  EXPECT_EQ(limits.way(1000), CommWay::two_shot_packets);
  EXPECT_EQ(limits.way(2000), CommWay::two_shot_tiles);
  EXPECT_EQ(limits.way(3000), CommWay::nccl);
  EXPECT_EQ(CommLimits{.tiles_from = 10}.way(10), CommWay::one_shot_tiles);
  for (const int ranks : {2, 3}) {  // two shots move as many bytes
    EXPECT_FALSE(is_two_shot(CommLimits::of(ranks).way(1 << 20)));
  }
  EXPECT_TRUE(is_two_shot(CommLimits::of(4).way(int64_t{1} << 40)));
  for (const int ranks : {2, 4, 8}) {  // messages of a decode step
    EXPECT_EQ(CommLimits::of(ranks).way(16 << 10), CommWay::one_shot_packets);
  }
  std::set<std::string_view> names;
  for (const CommWay way : kCommWays) {
    names.insert(name_of(way));
  }
  EXPECT_EQ(names.size(), kCommWays.size());
}

TEST(CommPlan, FewUnitsAreSpreadOverBlocks) {
  for (int64_t units = 1; units < 5000; units += 7) {
    for (const int max_blocks : {1, 16, CommLayout::kMaxBlocks}) {
      const CommShape shape = CommShape::of(units, max_blocks);
      EXPECT_GE(shape.blocks, 1);
      EXPECT_LE(shape.blocks, max_blocks);
      EXPECT_GE(shape.warps, 1);
      EXPECT_LE(shape.warps, CommShape::kMaxWarps);
      // All units at once, as long as the grid may grow.
      EXPECT_TRUE(shape.blocks * shape.warps >= units ||
                  (shape.blocks == max_blocks && shape.warps == CommShape::kMaxWarps));
    }
  }
  EXPECT_EQ(CommShape::of(10, 64).blocks, 3);
}

}  // namespace
}  // namespace sparsellm
