#include "kernels/base/comm_plan.h"

#include <algorithm>

namespace sparsellm {
namespace {

constexpr int64_t kKiB = 1024;

}  // namespace

std::string_view name_of(CommWay way) {
  switch (way) {
    case CommWay::one_shot_packets:
      return "one-shot-packets";
    case CommWay::one_shot_tiles:
      return "one-shot-tiles";
    case CommWay::two_shot_packets:
      return "two-shot-packets";
    case CommWay::two_shot_tiles:
      return "two-shot-tiles";
    case CommWay::nccl:
      return "nccl";
  }
  return "?";
}

CommWay CommLimits::way(int64_t bytes) const {
  if (bytes >= nccl_from) {
    return CommWay::nccl;
  }
  if (bytes >= two_shot_from) {
    return bytes >= tiles_from ? CommWay::two_shot_tiles : CommWay::two_shot_packets;
  }
  return bytes >= tiles_from ? CommWay::one_shot_tiles : CommWay::one_shot_packets;
}

CommLimits CommLimits::of(int ranks) {
  // Of n ranks each sends n - 1 times a message in one shot, and less than twice in two. A tile
  // costs the time of a round trip before its flag, a packet a third more bytes.
  constexpr int kTwoShotRanks = 4;
  // Two ranks add up half as much in two shots, which pays where the sums take longer than the
  // second round trip.
  return {.two_shot_from = (ranks >= kTwoShotRanks ? 256 : 4096) * kKiB,
          .tiles_from = 2048 * kKiB / (ranks >= kTwoShotRanks ? 2 : 1)};
}

int64_t bytes_of_call(CommWay way, const CommLayout& layout, int ranks) {
  const CommUnit& unit = is_packets(way) ? kPacketUnit : kTileUnit;
  const CommSlots& slots = is_packets(way) ? layout.packets : layout.tiles;
  const int64_t units = is_two_shot(way) ? slots.slot_units / 2 * ranks : slots.slot_units;
  return units * unit.data_bytes;
}

CommShape CommShape::of(int64_t units, int max_blocks) {
  constexpr int64_t kFewWarps = 4;  // of a block, as long as there are blocks
  const int64_t blocks = std::clamp<int64_t>((units + kFewWarps - 1) / kFewWarps, 1, max_blocks);
  const int64_t warps = std::clamp<int64_t>((units + blocks - 1) / blocks, 1, kMaxWarps);
  return {.blocks = static_cast<int>(blocks), .warps = static_cast<int>(warps)};
}

}  // namespace sparsellm
