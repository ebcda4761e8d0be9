#pragma once

#include <cstdint>

namespace sparsellm {

// The memory of a GPU that ranks with peer access write to (comm_kernels.h), the same on all ranks.
// Data travel in units, each by one warp, in one of two forms (comm_transport.cuh):
//   packets  16 bytes at a time, of which 12 are data and 4 say of which call: the shortest way
//   tiles    as they are, with a flag after each: more of the bandwidth
// For each form, and each of two calls in turn, a rank has a slot for every other rank.
struct CommUnit {
  int64_t data_bytes;
  int64_t wire_bytes;  // in a slot
};
inline constexpr CommUnit kPacketUnit{.data_bytes = 32 * 48, .wire_bytes = 32 * 64};
inline constexpr CommUnit kTileUnit{.data_bytes = 32 * 64, .wire_bytes = 32 * 64 + 128};

// The slots of one form.
struct CommSlots {
  int64_t offset = 0;  // of the first, from the beginning of the memory
  int64_t slot_bytes = 0;
  int64_t slot_units = 0;  // even: two-shot has two halves
};

struct CommLayout {
  static constexpr int kMaxRanks = 8;  // of one host
  static constexpr int kMaxBlocks =
      64;  // of a kernel: all of them run at once on any GPU that is used
  static constexpr int kTurns = 2;
  // What only the rank itself uses: u64 [kMaxBlocks], the number of the call that comes next, once
  // for each block; then u32, how many blocks of a call are done.
  static constexpr int64_t kDoneOffset = kMaxBlocks * int64_t{sizeof(uint64_t)};
  // u32 [kDeferredSlots], written by the other rank: which sum is in a slot.
  static constexpr int64_t kArrivedOffset = 1024;
  static constexpr int64_t kControlBytes = 4096;

  // Bytes of the slots of one form, of one turn.
  static constexpr int64_t kPacketBytes = int64_t{4} << 20;
  static constexpr int64_t kTileBytes = int64_t{16} << 20;

  // Of two ranks: where parts of sums arrive while products run (comm_deferred.h). Half of a pass
  // of 2,048 tokens of OPT-66B is 18 MiB.
  static constexpr int kDeferredSlots = 4;
  static constexpr int64_t kDeferredBytes = int64_t{20} << 20;  // of a slot

  CommSlots packets;
  CommSlots tiles;
  int64_t deferred_offset = 0;
  int64_t deferred_bytes = 0;  // of a slot; 0: there are none
  int64_t bytes = 0;

  // Of 2 to kMaxRanks ranks.
  static constexpr CommLayout of(int ranks) {
    CommLayout layout;
    layout.packets = slots(kPacketUnit, kPacketBytes, ranks, kControlBytes);
    layout.tiles = slots(kTileUnit, kTileBytes, ranks, end(layout.packets, ranks));
    layout.deferred_offset = end(layout.tiles, ranks);
    layout.deferred_bytes = ranks == 2 ? kDeferredBytes : 0;
    const int64_t end = layout.deferred_offset + kDeferredSlots * layout.deferred_bytes;
    // Whole pages of the GPU's memory: nothing else lies in what other processes map.
    constexpr int64_t kPage = int64_t{2} << 20;
    layout.bytes = (end + kPage - 1) / kPage * kPage;
    return layout;
  }

 private:
  static constexpr CommSlots slots(const CommUnit& unit, int64_t bytes, int ranks, int64_t offset) {
    const int64_t units = bytes / (ranks - 1) / unit.wire_bytes / 2 * 2;
    return {.offset = offset, .slot_bytes = units * unit.wire_bytes, .slot_units = units};
  }
  static constexpr int64_t end(const CommSlots& slots, int ranks) {
    return slots.offset + kTurns * (ranks - 1) * slots.slot_bytes;
  }
};

}  // namespace sparsellm
