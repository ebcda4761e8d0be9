#include "sparse/tiled_csl/host/record_plan.h"

#include <algorithm>
#include <numeric>

namespace sparsellm::tiled_csl {
namespace {

// Nonzeros that groups of that number do not hold in the lanes of their banks.
BankCounts left_over(const BankCounts& counts, int groups) {
  BankCounts left;
  std::ranges::transform(counts, left.begin(),
                         [&](int count) { return std::max(count - groups * kSlots, 0); });
  return left;
}

int total(const BankCounts& counts) { return std::accumulate(counts.begin(), counts.end(), 0); }

// The emptiest lanes first; each takes what it has places for from the bank that has most left.
RecordPlan with_hosts(const BankCounts& counts, int groups) {
  RecordPlan plan{.groups = groups};
  std::iota(plan.donor.begin(), plan.donor.end(), 0);
  BankCounts left = left_over(counts, groups);
  std::array<int, kWarp> emptiest;
  std::iota(emptiest.begin(), emptiest.end(), 0);
  std::ranges::stable_sort(emptiest, {}, [&](int lane) { return counts[lane]; });
  for (const int lane : emptiest) {
    const int spare = std::clamp(groups * kSlots - counts[lane], 0, kSlots);
    const auto fullest = std::ranges::max_element(left);
    const int taken = std::min(spare, *fullest);
    if (taken == 0) {
      break;
    }
    plan.donor[lane] = static_cast<int>(fullest - left.begin());
    plan.hosted[lane] = taken;
    *fullest -= taken;
  }
  plan.words = total(left);
  return plan;
}

}  // namespace

RecordPlan plan_record(const BankCounts& counts) {
  int best_groups = 0;
  int best_bytes = record_bytes(0, total(counts));
  const int most = static_cast<int>(ceil_div(std::ranges::max(counts), kSlots));
  for (int groups = 1; groups <= most; ++groups) {
    const int bytes = record_bytes(groups, total(left_over(counts, groups)));
    if (bytes < best_bytes) {
      best_bytes = bytes;
      best_groups = groups;
    }
  }
  RecordPlan best = with_hosts(counts, std::max(best_groups - 1, 0));
  for (int groups = std::max(best_groups, 1); groups <= std::min(best_groups + 1, most); ++groups) {
    const RecordPlan plan = with_hosts(counts, groups);
    best = plan.bytes() < best.bytes() ? plan : best;
  }
  return best;
}

}  // namespace sparsellm::tiled_csl
