#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

#include "kernels/base/comm_layout.h"

namespace sparsellm {

// How a sum over ranks on CUDA is made.
enum class CommWay : uint8_t {
  one_shot_packets,  // each rank sends its part to all others, and adds up all of them
  one_shot_tiles,
  two_shot_packets,  // each rank adds up its share of the elements, and sends the sum to all others
  two_shot_tiles,
  nccl,
};
inline constexpr std::array kCommWays{CommWay::one_shot_packets, CommWay::one_shot_tiles,
                                      CommWay::two_shot_packets, CommWay::two_shot_tiles,
                                      CommWay::nccl};
std::string_view name_of(CommWay way);  // "one-shot-packets"

constexpr bool is_two_shot(CommWay way) {
  return way == CommWay::two_shot_packets || way == CommWay::two_shot_tiles;
}
constexpr bool is_packets(CommWay way) {
  return way == CommWay::one_shot_packets || way == CommWay::two_shot_packets;
}

// Which way a message of some bytes takes.
struct CommLimits {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  int64_t two_shot_from = kNever;  // bytes of the tensor
  int64_t tiles_from = kNever;
  // Where the caller may use NCCL beside own kernels.
  int64_t nccl_from = kNever;

  CommWay way(int64_t bytes) const;
  // Of what is not added up, by the bytes of the largest part.
  bool sends_packets(int64_t bytes) const { return bytes < tiles_from; }

  // Without measurements, of own kernels.
  static CommLimits of(int ranks);
};

// What one kernel takes of a message of `bytes`, piece by piece; each is a call of its own.
int64_t bytes_of_call(CommWay way, const CommLayout& layout, int ranks);

// Units of `bytes`, of which there is at least one: with nothing to say a rank says so.
constexpr int64_t comm_units(int64_t bytes, const CommUnit& unit) {
  return bytes <= unit.data_bytes ? 1 : (bytes + unit.data_bytes - 1) / unit.data_bytes;
}

// Thread blocks of a kernel with so many units for its warps, and threads of a block. Few units
// are spread over many multiprocessors.
struct CommShape {
  static constexpr int kMaxWarps = 16;
  int blocks = 1;
  int warps = 1;  // of a block

  static CommShape of(int64_t units, int max_blocks);
};

}  // namespace sparsellm
