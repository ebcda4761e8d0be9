#pragma once

#include <array>
#include <cstdint>

#include "sparse/tiled_csl/format/tile_record.h"

namespace sparsellm::tiled_csl {

// What a record of version 2 (tile_record.h) consists of: arithmetic alone, which the encoders of
// the host and of CUDA devices share, so that both make the same bytes.

using BankCounts = std::array<int, kBanks>;  // nonzeros of a tile

struct RecordPlan {
  int groups = 0;
  int words = 0;
  // Of lane l, whose bank has places to spare: the last `hosted` slots of group 0 are for values of
  // the bank `donor`. None: l itself and 0.
  std::array<uint8_t, kWarp> donor{};
  std::array<uint8_t, kWarp> hosted{};

  constexpr int bytes() const { return record_bytes(groups, words); }
};

// Nonzeros of a bank that groups of that number do not hold in its own lane.
constexpr int left_over(int count, int groups) {
  const int left = count - groups * kSlots;
  return left > 0 ? left : 0;
}
constexpr int total_left_over(const BankCounts& counts, int groups) {
  int total = 0;
  for (const int count : counts) {
    total += left_over(count, groups);
  }
  return total;
}

// Lanes with fewer nonzeros first, the lower number where there are as many.
constexpr std::array<uint8_t, kWarp> emptiest_first(const BankCounts& counts) {
  std::array<uint8_t, kWarp> order{};
  for (int lane = 0; lane < kWarp; ++lane) {
    int at = lane;
    for (; at > 0 && counts[order[at - 1]] > counts[lane]; --at) {
      order[at] = order[at - 1];
    }
    order[at] = static_cast<uint8_t>(lane);
  }
  return order;
}

// The emptiest lanes first; each takes what it has places for from the bank that has most left.
constexpr RecordPlan plan_with_hosts(const BankCounts& counts,
                                     const std::array<uint8_t, kWarp>& emptiest, int groups) {
  RecordPlan plan{.groups = groups, .words = 0};
  BankCounts left{};
  for (int bank = 0; bank < kBanks; ++bank) {
    left[bank] = left_over(counts[bank], groups);
    plan.words += left[bank];
    plan.donor[bank] = static_cast<uint8_t>(bank);
  }
  for (const int lane : emptiest) {
    const int places = groups * kSlots - counts[lane];
    const int spare = places < kSlots ? places : kSlots;
    if (spare <= 0 || plan.words == 0) {
      break;
    }
    int fullest = 0;
    for (int bank = 1; bank < kBanks; ++bank) {
      fullest = left[bank] > left[fullest] ? bank : fullest;
    }
    const int taken = spare < left[fullest] ? spare : left[fullest];
    plan.donor[lane] = static_cast<uint8_t>(fullest);
    plan.hosted[lane] = static_cast<uint8_t>(taken);
    left[fullest] -= taken;
    plan.words -= taken;
  }
  return plan;
}

// As many groups as take the fewest bytes, one more or less than would be best without hosts.
constexpr RecordPlan plan_record(const BankCounts& counts) {
  int fullest = 0;
  for (const int count : counts) {
    fullest = count > fullest ? count : fullest;
  }
  const int most = static_cast<int>(ceil_div(fullest, kSlots));
  int best_groups = 0;
  int best_bytes = record_bytes(0, total_left_over(counts, 0));
  for (int groups = 1; groups <= most; ++groups) {
    const int bytes = record_bytes(groups, total_left_over(counts, groups));
    if (bytes < best_bytes) {
      best_bytes = bytes;
      best_groups = groups;
    }
  }
  const std::array<uint8_t, kWarp> emptiest = emptiest_first(counts);
  const int fewest = best_groups > 0 ? best_groups - 1 : 0;
  RecordPlan best = plan_with_hosts(counts, emptiest, fewest);
  for (int groups = fewest + 1; groups <= best_groups + 1 && groups <= most; ++groups) {
    const RecordPlan plan = plan_with_hosts(counts, emptiest, groups);
    best = plan.bytes() < best.bytes() ? plan : best;
  }
  return best;
}

}  // namespace sparsellm::tiled_csl
